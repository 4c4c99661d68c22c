"""A server in a separate process, which does not share an interpreter with the measured program."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlencode

from lithify.testing.s3.admin import ADMIN, LOG, OBJECTS, WEATHER
from lithify.testing.s3.log import LoggedRequest
from lithify.testing.s3.weather import Weather

_TIMEOUT_S = 60.0


class S3Process:
    """Like `S3Server`, but in another process. Large objects may be kept in files of `folder`, for more data
    than memory can hold. Raise `RuntimeError` if the server does not start, or refuses an admin request."""

    def __init__(self, weather: Weather | None = None, *, seed: int = 0, folder: Path | None = None) -> None:
        self._first_weather, self._seed, self._folder = weather, seed, folder

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "lithify.testing.s3", "--port", "0", "--seed", str(self._seed)]
        command += [] if self._folder is None else ["--folder", str(self._folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            raise RuntimeError(f"the server ended with {self._process.wait(_TIMEOUT_S)}")
        if self._first_weather is not None:
            self.weather = self._first_weather
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(_TIMEOUT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def weather(self) -> Weather:
        """The weather for requests from now on. Can be set."""
        return Weather().changed(json.loads(self._ask("GET", WEATHER)))

    @weather.setter
    def weather(self, weather: Weather) -> None:
        self._ask("PUT", WEATHER, body=json.dumps(weather.to_json()).encode())

    @property
    def log(self) -> list[LoggedRequest]:
        """All requests that have ended, in the order of their ends."""
        return [LoggedRequest.from_line(line) for line in self._ask("GET", LOG).splitlines()]

    def forget(self) -> None:
        self._ask("DELETE", LOG)

    def load(self, folder: Path, bucket: str, prefix: str = "") -> int:
        """Create objects from all files under `folder`, which must not change, and create the bucket. Return
        their number."""
        place = {"bucket": bucket, "prefix": prefix, "folder": str(folder)}
        return int(self._ask("POST", f"{OBJECTS}?{urlencode(place)}"))

    def delete(self, bucket: str, prefix: str = "") -> int:
        """Delete all objects and uploads under `prefix`. Return the number of objects."""
        return int(self._ask("DELETE", f"{OBJECTS}?{urlencode({'bucket': bucket, 'prefix': prefix})}"))

    def _ask(self, method: str, what: str, body: bytes | None = None) -> str:
        request = urllib.request.Request(f"{self.url}{ADMIN}{what}", body, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                return bytes(answer.read()).decode()
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {what}: {error.read().decode()}") from error
