// The history as charts, of the same JSON that the table shows. The table is what screen readers get.
"use strict";
(() => {
  const ink = () => getComputedStyle(document.body).color;

  const moment = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ");

  function chart(place, title, times, values, unit, width) {
    const axis = { stroke: ink, grid: { stroke: "#8888", width: 0.5 }, ticks: { stroke: "#8888" } };
    const options = {
      title,
      width,
      height: 200,
      tzDate: (ts) => uPlot.tzDate(new Date(ts * 1000), "UTC"),
      series: [
        { label: "UTC", value: "{YYYY}-{MM}-{DD} {HH}:{mm}" },
        { label: unit, stroke: "#4b8bd4", fill: "#4b8bd433", points: { show: true, size: 5 } },
      ],
      axes: [{ ...axis, space: 130, values: (_, times) => times.map(moment) }, { ...axis, size: 64 }],
    };
    new uPlot(options, [times, values], place);
  }

  async function draw() {
    const place = document.getElementById("charts");
    if (!place || place.childElementCount) return;
    const answer = await fetch(place.dataset.json, { headers: { accept: "application/json" } });
    if (!answer.ok) return;
    const commits = (await answer.json()).commits;
    if (commits.length < 2 || place.childElementCount) return;
    const times = commits.map((c) => c.at_ms / 1000);
    const room = place.parentElement.clientWidth - 32; // without its padding
    const width = room < 900 ? Math.min(room, 560) : Math.floor(room / 3) - 12;
    const mb = 1e6;
    chart(place, "Read by each commit", times, commits.map((c) => c.bytes_read / mb), "MB", width);
    chart(place, "Throughput", times, commits.map((c) => (c.seconds ? c.bytes_read / mb / c.seconds : null)), "MB/s", width);
    chart(place, "Written for each byte read", times, commits.map((c) => (c.bytes_read ? c.bytes_written / c.bytes_read : null)), "ratio", width);
  }

  draw();
  document.body.addEventListener("htmx:afterSettle", draw);
})();
