// The history as charts, of the same JSON that the table shows. The table is what screen readers get.
"use strict";
(() => {
  let drawn = [];
  const ink = () => getComputedStyle(document.body).color;

  // Both with as many digits as tell two neighbours apart, or as a lone one needs.
  const moment = (seconds, step = seconds % 60 || 60) => {
    const chars = step < 1 ? 23 : step < 60 ? 19 : 16;
    return new Date(seconds * 1000).toISOString().slice(0, chars).replace("T", " ");
  };
  const number = (value, step = 1) => {
    const isRound = (scaled) => Math.abs(scaled - Math.round(scaled)) <= scaled * 1e-6;
    let digits = 0;
    while (digits < 12 && !isRound(step * 10 ** digits)) digits += 1;
    return value.toFixed(digits);
  };
  const labels = (write) => (_, values) =>
    values.map((value) => write(value, values.length > 1 ? values[1] - values[0] : undefined));

  // Bytes in the unit in which the largest has at most four digits.
  function sized(values, after) {
    const most = Math.max(0, ...values);
    const found = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]].find(([size]) => most >= size);
    const [size, name] = found ?? [1, "B"];
    return [values.map((value) => (value === null ? null : value / size)), name + after];
  }

  function chart(place, title, times, values, unit, width) {
    const axis = { stroke: ink, grid: { stroke: "#8888", width: 0.5 }, ticks: { stroke: "#8888" } };
    const options = {
      title: `${title} (${unit})`,
      width,
      height: 200,
      tzDate: (ts) => uPlot.tzDate(new Date(ts * 1000), "UTC"),
      series: [
        { label: "UTC", value: "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" },
        { label: unit, stroke: "#4b8bd4", fill: "#4b8bd433", points: { show: true, size: 5 } },
      ],
      scales: { y: { range: (_, least, most) => [0, most > 0 ? most * 1.05 : 1] } }, // from zero
      axes: [{ ...axis, space: 150, values: labels(moment) }, { ...axis, size: 64, values: labels(number) }],
    };
    drawn.push(new uPlot(options, [times, values], place));
  }

  function fitting(place) {
    const room = place.parentElement.clientWidth - 32; // without its padding
    return room < 900 ? Math.min(room, 560) : Math.floor(room / 3) - 12;
  }

  async function draw() {
    const place = document.getElementById("charts");
    if (!place || place.childElementCount) return;
    const answer = await fetch(place.dataset.json, { headers: { accept: "application/json" } });
    if (!answer.ok) return;
    const commits = (await answer.json()).commits;
    if (commits.length < 2 || place.childElementCount) return;
    const times = commits.map((c) => c.at_ms / 1000);
    drawn = [];
    const width = fitting(place);
    const rates = commits.map((c) => (c.seconds ? c.bytes_read / c.seconds : null));
    chart(place, "Read by each commit", times, ...sized(commits.map((c) => c.bytes_read), ""), width);
    chart(place, "Throughput", times, ...sized(rates, "/s"), width);
    chart(place, "Written for each byte read", times, commits.map((c) => (c.bytes_read ? c.bytes_written / c.bytes_read : null)), "ratio", width);
  }

  // The page changed its colours, or its width: ink and sizes are of the moment of drawing.
  function fit() {
    const place = document.getElementById("charts");
    if (place) drawn.forEach((one) => one.setSize({ width: fitting(place), height: one.height }));
  }
  addEventListener("resize", fit);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((one) => one.redraw(false, true)));

  draw();
  document.body.addEventListener("htmx:afterSettle", draw);
})();
