"""Spark's configuration, as pure functions of the master, the machine and the user's settings.

1. A *local* master (`local…`) runs everything in this machine's processes. `local`, `local[N]` and `local[*]`
   become `local[N,4]`, because local mode retries a failed task in no other form.
2. Every driver gets settings that make short one-task jobs cheap and Spark silent.
3. A local master, or a cluster on the loopback address, is bound to the loopback address. Other clusters are
   not, because their executors must reach the driver.
4. Clusters get short heartbeats, so that the task of a frozen executor is retried after seconds. Local
   masters keep Spark's, because with short ones a pause of the machine would look like a lost executor.
5. A driver listens on ports where a message is a Java object, which can run code while it is read. So
   connections must be authenticated (`authentication`). PySpark's own are sockets in the session's private
   folder, or ports with a token where sockets are not supported.
6. The user's settings override all of these, key by key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lithify.base.errors import Refused
from lithify.base.redaction import SPARK_REGEX

DEFAULT_ATTEMPTS = 4
DAEMON_MODULE = "lithify.engine.daemon"
PRELOAD_VARIABLE = "LITHIFY_PRELOAD"
AUTHENTICATE = "spark.authenticate"
DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
JVM_OPTIONS = frozenset({DRIVER_OPTIONS, "spark.driver.defaultJavaOptions"})
"""Settings that contain options of the driver's JVM."""
_EXECUTOR_ENVIRONMENT = "spark.executorEnv."
_MAX_LOCAL_DIGITS = 4
_LOCAL = re.compile(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*(\d+)\s*)?\])?")
_OTHER_MASTER = re.compile(r"local-cluster\[.+\]|yarn|(?:spark|k8s|sc)://.+")
_LOOPBACK_HOST = re.compile(r"\w+://(?:localhost|127\.\d+\.\d+\.\d+|\[::1\])(?::\d+)?(?:[/,;].*)?")
_LOOPBACK = "127.0.0.1"
_MAX_SOCKET_FOLDER_BYTES = 103 - len("/.00000000-0000-0000-0000-000000000000.sock")
"""The most restrictive system limits a socket's path to 103 bytes."""


@dataclass(frozen=True, slots=True)
class LocalMaster:
    """A master that consists of threads in the driver's JVM."""

    cores: int
    attempts: int

    @property
    def url(self) -> str:
        return f"local[{self.cores},{self.attempts}]"


def parse_local(master: str, cpus: int) -> LocalMaster | None:
    """Parse the URL of a local master, on a machine with `cpus` processors. Return `None` for any other
    master."""
    match = _LOCAL.fullmatch(master.strip())
    if match is None:
        return None
    cores, attempts = match.groups(default="")
    if max(len(cores), len(attempts)) > _MAX_LOCAL_DIGITS:
        raise Refused(f"the Spark master {master[:40]!r} names more cores or attempts than allowed")
    count = cpus if cores == "*" else int(cores or 1)
    return LocalMaster(max(1, count), max(1, int(attempts or DEFAULT_ATTEMPTS)))


def check_form(master: str) -> None:
    """Raise `Refused` if Spark would reject such a master, which it would report only after its start."""
    if parse_local(master, 1) is None and _OTHER_MASTER.fullmatch(master.strip()) is None:
        raise Refused(
            f"{master!r} is not a Spark master: write local[N], spark://host:port, yarn, k8s://… or "
            "sc://host:port"
        )


def is_connect(master: str) -> bool:
    return master.startswith("sc://")


def is_loopback(master: str) -> bool:
    """Return whether driver and executors all run on this machine."""
    return master.startswith("local") or _LOOPBACK_HOST.fullmatch(master) is not None


def max_attempts(master: str, conf: Mapping[str, str], cpus: int = 1) -> int:
    """Return how often Spark runs a task before it fails."""
    local = re.fullmatch(r"local(\[[^,\]]*\])?", master.strip())
    if local:
        return 1
    retrying = parse_local(master, cpus)
    return retrying.attempts if retrying else int(conf.get("spark.task.maxFailures", DEFAULT_ATTEMPTS))


def has_lasting_executors(conf: Mapping[str, str]) -> bool:
    """Return whether the master is a standalone cluster whose executors last until the application ends."""
    return conf["spark.master"].startswith("spark://") and not _is_dynamic(conf)


def dynamic_slots(conf: Mapping[str, str]) -> int | None:
    """Return how many calls can run at once when dynamic allocation has started all its executors. Spark
    starts as many as there are calls, so fewer calls would limit it. `None` without dynamic allocation, or if
    the maximum of executors (`spark.dynamicAllocation.maxExecutors`) or their size is unknown."""
    executors = conf.get("spark.dynamicAllocation.maxExecutors", "")
    cores = conf.get(
        "spark.executor.cores", "1" if not conf.get("spark.master", "").startswith("spark:") else ""
    )
    per_call = conf.get("spark.task.cpus", "1")
    counts = [text.strip() for text in (executors, cores, per_call)]
    if not _is_dynamic(conf) or not all(text.isdecimal() and int(text) for text in counts):
        return None
    return max(1, int(executors) * (int(cores) // int(per_call)))


def _is_dynamic(conf: Mapping[str, str]) -> bool:
    return _is_true(conf.get("spark.dynamicAllocation.enabled", ""))


def usable_cpus() -> int:
    """Return the number of processors that this process may use, by its affinity and its control group's
    quota."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota = parse_cpu_quota(Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii"))
    except OSError:
        quota = None
    return max(1, affinity if quota is None else min(affinity, quota))


def parse_cpu_quota(text: str) -> int | None:
    """Return the processors of a `cpu.max` file, rounded up; `None` for no limit."""
    quota, _, period = text.strip().partition(" ")
    if not (quota.isdigit() and period.isdigit() and int(period)):
        return None
    return -(-int(quota) // int(period))


def authentication(master: str, user: Mapping[str, str], secret: str) -> dict[str, str]:
    """Return the settings that make Spark accept only connections of its own application. For local masters,
    Kubernetes and YARN, Spark generates a secret and passes it to executors; a cluster in this JVM needs
    `secret`. Two clusters are left to their operator: a standalone one, whose master and workers must have
    the same secret as all applications, and YARN with an external shuffle service, which must authenticate
    too."""
    if AUTHENTICATE in user and not _is_true(user[AUTHENTICATE]):
        return {}
    if master.startswith("local-cluster"):
        return {AUTHENTICATE: "true", f"{AUTHENTICATE}.secret": secret}
    if master.startswith(("local", "k8s:")):
        return {AUTHENTICATE: "true"}
    if master.startswith("yarn") and not _is_true(user.get("spark.shuffle.service.enabled", "")):
        return {AUTHENTICATE: "true"}
    return {}


def is_open(master: str, user: Mapping[str, str]) -> bool:
    """Return whether any program that reaches the driver's ports can run code in it."""
    if is_connect(master):
        return False  # Lithify does not run the server
    return not _is_true((authentication(master, user, "") | dict(user)).get(AUTHENTICATE, ""))


def _is_true(value: str) -> bool:
    return value.strip().lower() == "true"


def java_options(log_config: Path, error_file: Path, archive: Path | None) -> list[str]:
    """Return options of the driver's JVM. The first-tier compiler and the serial collector start fastest, and
    no data passes through the driver, so more optimisation would cost more than it saves."""
    options = [f"-Dlog4j2.configurationFile={log_config.as_uri()}", f"-XX:ErrorFile={error_file}"]
    options += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    if archive is not None:
        # With a verified checksum a damaged archive is ignored and cannot crash the JVM.
        options += [f"-XX:SharedArchiveFile={archive}", "-XX:+VerifySharedSpaces"]
    return options


def driver_settings(
    master: str,
    app_name: str,
    *,
    cpus: int,
    folder: Path,
    java: list[str],
    python_path: list[str],
    preload: str | None,
    user: Mapping[str, str],
    secret: str,
) -> dict[str, str]:
    """Return all settings of a classic session. `folder` is private to it; `java` are the JVM's options;
    local tasks import from `python_path`; Python worker daemons call the function named by `preload` before
    they fork workers; `secret` must be new."""
    local = parse_local(master, cpus)
    settings = {
        "spark.master": local.url if local else master,
        "spark.app.name": app_name,
        "spark.driver.memory": "1g",
        DRIVER_OPTIONS: quote_options(java),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.python.daemon.module": DAEMON_MODULE,
        "spark.python.task.killTimeout": "100ms",
        "spark.redaction.regex": SPARK_REGEX,
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
    }
    if preload is not None:
        settings[_EXECUTOR_ENVIRONMENT + PRELOAD_VARIABLE] = preload
    if is_loopback(master):
        settings |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    if master.startswith("local"):
        settings["spark.local.dir"] = str(folder)
        if len(bytes(folder)) <= _MAX_SOCKET_FOLDER_BYTES:
            # Sockets need no token, so they must be where no other user has access.
            settings["spark.python.unix.domain.socket.enabled"] = "true"
            settings["spark.python.unix.domain.socket.dir"] = str(folder)
        settings[_EXECUTOR_ENVIRONMENT + "PYTHONPATH"] = os.pathsep.join(python_path)
    else:
        settings |= {
            "spark.executor.heartbeatInterval": "2s",
            "spark.network.timeout": "15s",
            "spark.network.timeoutInterval": "3s",
        }
    return settings | authentication(master, user, secret) | dict(user)


def launch_environment(
    master: str, java_home: Path, python: str, user: Mapping[str, str], inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment variables for launching the driver's JVM and its context."""
    variables = {
        "JAVA_HOME": str(java_home),
        "PYSPARK_PYTHON": user.get("spark.pyspark.python") or inherited.get("PYSPARK_PYTHON") or python,
        "PYSPARK_PIN_THREAD": "true",
        "SPARK_CONNECT_MODE": "0",
        # The launcher is a separate, short-lived JVM.
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    if is_loopback(master):
        variables["SPARK_LOCAL_IP"] = _LOOPBACK
    return variables


def properties(conf: Mapping[str, str]) -> str:
    """Encode settings as a file of Java properties, in ASCII."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in conf.items())


def _escaped(text: str) -> str:
    units = memoryview(text.encode("utf-16-be", "surrogatepass")).cast("B")
    codes = [units[i] << 8 | units[i + 1] for i in range(0, len(units), 2)]
    plain = re.compile(r"[A-Za-z0-9.,/_\[\]*$@+-]")
    return "".join(chr(code) if plain.match(chr(code)) else f"\\u{code:04x}" for code in codes)


def quote_options(options: list[str]) -> str:
    """Return JVM options as one string, which Spark splits like a shell."""
    escaped = (re.sub(r'(["\\])', r"\\\1", option) for option in options)
    return " ".join(f'"{option}"' for option in escaped)


LOG_FILE = "spark.log"


def log_config(folder: Path) -> str:
    """Return a log4j2 configuration that writes warnings to a file of bounded size in `folder`."""
    return f"""\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {folder / LOG_FILE}
appender.file.filePattern = {folder / LOG_FILE}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
"""
