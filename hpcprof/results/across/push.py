"""Pushes runs to a hub: `hpcprof serve --accept` on another machine."""

import http.client
import os
import re
import socket
import ssl
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Timer
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import msgspec

from hpcprof.common.decode import from_json
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.common.units import visible
from hpcprof.profiles.scrub.files import scrub_files
from hpcprof.results.across.listing import list_runs
from hpcprof.results.across.package import describe, write_package
from hpcprof.results.ask.event_query import find_events
from hpcprof.results.ask.explanation import explain_for_report
from hpcprof.results.collect.collection import collect_profiles
from hpcprof.results.collect.rank_task import sha256_of
from hpcprof.results.collect.run_profiles import profiles_of, readable, runs_in
from hpcprof.results.store.store import Store, open_store
from hpcprof.runs.directory import Run

TOKEN_VARIABLE = "HPCPROF_TOKEN"

_PART_BYTES = 4 << 20
_MAX_TRIES, _PAUSE_S, _TIMEOUT_S = 5, 1.0, 120.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_TOKEN = re.compile(r"[\w-]{20,200}")
_PROXY_REFUSALS = {
    401: "a proxy before the hub asks for another sign-in; have it let requests with a Bearer token through",
    413: "a proxy before the hub refuses parts of 4 MiB; have it let 8 MiB through",
}
"""Reasons for refusals by a proxy, which sends no sentence of the hub."""


@dataclass(frozen=True)
class HubAddress:
    """The address of a hub and the token for it, which is never printed."""

    scheme: str
    host: str
    port: int | None
    token: str = field(repr=False)

    @property
    def url(self) -> str:
        """The address, as a browser opens it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}{f':{self.port}' if self.port else ''}"

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection that is not open yet, through the proxy of the environment if it names one.

        Raises HpcprofError if the proxy's address is invalid.
        """
        if self.scheme == "http":  # to this machine
            return http.client.HTTPConnection(self.host, self.port, timeout=_TIMEOUT_S)
        context = ssl.create_default_context()
        proxy = _proxy_to(self.host)
        if proxy is None:
            return http.client.HTTPSConnection(self.host, self.port, timeout=_TIMEOUT_S, context=context)
        connection = http.client.HTTPSConnection(proxy.host, proxy.port, timeout=_TIMEOUT_S, context=context)
        connection.set_tunnel(self.host, self.port, proxy.headers)
        return connection


@dataclass(frozen=True)
class _Proxy:
    """A proxy, which sees the destination of a connection but not its content."""

    host: str
    port: int
    headers: dict[str, str] = field(repr=False)


def _proxy_to(host: str) -> _Proxy | None:
    """Return the proxy of ``https_proxy`` or ``all_proxy``; None without one, or by ``no_proxy``."""
    proxies = getproxies_environment()
    url = proxies.get("https") or proxies.get("all")
    if not url or proxy_bypass(host):
        return None
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        name, port = parts.hostname, parts.port or 80
    except ValueError:
        name = None
    if name is None or parts.scheme != "http":
        raise HpcprofError("https_proxy names no usable proxy: write http://HOST:PORT.")
    if parts.username is None:
        return _Proxy(name, port, {})
    account = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return _Proxy(name, port, {"Proxy-Authorization": f"Basic {b64encode(account.encode()).decode()}"})


def hub_address(url: str, token_file: Path | None) -> HubAddress:
    """Return the hub of a URL, with the token of a file or of ``$HPCPROF_TOKEN``."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    unexpected = parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc
    if parts.scheme not in ("http", "https") or not host or unexpected:
        raise UsageError("URL: write the hub's address alone, as in https://profiles.example.org.")
    if parts.scheme == "http" and host not in _LOOPBACK:
        raise UsageError(f"http://{host}: a token goes to another machine over https only.")
    try:
        token = token_file.read_text(encoding="utf-8") if token_file else os.environ.get(TOKEN_VARIABLE, "")
    except (OSError, UnicodeError):
        raise UsageError(f"--token-file {token_file}: it cannot be read.") from None
    if not _TOKEN.fullmatch(token.strip()):
        where = f"--token-file {token_file}" if token_file else f"${TOKEN_VARIABLE}"
        raise UsageError(f"{where} has no token: hpcprof serve token create makes one on the hub.")
    return HubAddress(parts.scheme, host, port, token.strip())


def push_run(
    run: Run, store: Store, hub: HubAddress, progress: Callable[[int, int], None], scrub: bool = False
) -> str:
    """Push the results and the kept events of a run, and return its address at the hub.

    A package that the hub has is not sent again, and an interrupted push resumes. ``progress`` is called with
    the bytes that the hub has and the size of the package. ``scrub`` pushes the results of copies of the
    profiles without private data. Raises HpcprofError if nothing of the run has been collected, the hub
    cannot be reached, or it refuses.
    """
    listed = next((row for row in list_runs(store.runs_dir, str(store.url)) if row.run == run.id), None)
    if listed is None:
        raise HpcprofError(f"nothing of it has been collected: hpcprof collect {run.id}.")
    with tempfile.TemporaryDirectory(prefix="hpcprof-push-") as folder:
        sent, store_of_copy = run, store
        if scrub:
            row = store.run(run.id)
            # Histories need the name of the program; its folder is private.
            program = Path(row.program).name if row and row.program else None
            sent, store_of_copy = _scrub_run(run, Path(folder), program)
            listed = msgspec.structs.replace(listed, command=None, reason="", tags=[])
        explain_for_report(sent, store_of_copy)
        # A collect keeps no events of another tool's profiles. Without events, the hub shows no timeline.
        with readable(sent) as (to_read, _), suppress(HpcprofError):
            find_events([to_read], store_of_copy)
        package, run_row = Path(folder) / "package.tar.gz", store_of_copy.run(sent.id)
        if run_row is None:
            raise HpcprofError(f"it has no results: hpcprof collect {run.id} says why.")
        write_package(package, sent.id, describe(listed, run_row.program), store_of_copy)
        return _send(package, hub, progress)


def _scrub_run(run: Run, folder: Path, program: str | None) -> tuple[Run, Store]:
    """Return a scrubbed copy of a run in ``folder``, and the store into which it was collected."""
    copies = folder / "profiles"
    with readable(run) as (run_to_read, _):
        result = scrub_files(profiles_of(run_to_read), copies)
    if result.skipped or not result.written:
        reason = result.skipped[0] if result.skipped else "it has no profile that can be scrubbed"
        raise HpcprofError(f"{run.id} was not pushed: {reason.rstrip('.')}.")
    _rename(result.in_names)
    (copied,) = runs_in(copies)
    store = open_store(str(folder / "results.db"), folder)
    collect_profiles(copied, runs_dir=folder, db=str(folder / "results.db"), program=program)
    return copied, store


def _rename(in_names: Mapping[Path, Sequence[str]]) -> None:
    words = sorted({word for texts in in_names.values() for word in texts}, key=len, reverse=True)
    for path, texts in in_names.items():
        name = path.name
        for word in sorted(texts, key=len, reverse=True):
            name = name.replace(word, f"name{words.index(word) + 1}")
        path.rename(path.with_name(name))


def _send(package: Path, hub: HubAddress, progress: Callable[[int, int], None]) -> str:
    path, length = f"/api/push/{sha256_of([package])}", package.stat().st_size
    failed = furthest = 0
    offset: int | None = None
    with package.open("rb") as file:
        while True:
            try:
                if offset is None:
                    answer = _request(hub, "GET", path)
                else:
                    file.seek(offset)
                    headers = {"Upload-Offset": str(offset), "Upload-Length": str(length)}
                    answer = _request(hub, "PUT", path, file.read(_PART_BYTES), headers)
            except _OffsetMismatch as error:
                failed += 1
                if error.offset == offset or failed >= _MAX_TRIES:
                    raise HpcprofError(f"{hub.url} accepts no more than {offset:,} bytes of it.") from None
                answer = {"offset": error.offset, "run": None}
            except ssl.SSLCertVerificationError as error:
                raise HpcprofError(
                    f"{hub.url} cannot be trusted: {error.verify_message}; "
                    "SSL_CERT_FILE=FILE names the certificates of your own authority."
                ) from None
            except (OSError, http.client.HTTPException, _Unavailable) as error:
                failed += 1
                if failed >= _MAX_TRIES:
                    raise HpcprofError(
                        f"{hub.url} cannot be reached: {error}; push again to resume."
                    ) from None
                time.sleep(_PAUSE_S * 2**failed)
                offset = None
                continue
            offset = answer.get("offset")
            if not isinstance(offset, int) or not 0 <= offset <= length:
                raise HpcprofError(f"{hub.url} is not a hub: it does not say how much of the package it has.")
            if offset > furthest:
                failed, furthest = 0, offset
            run = answer.get("run")
            progress(length if run else offset, length)
            if run:
                return f"{hub.url}{visible(str(answer.get('address')))}"


class _Unavailable(Exception):
    """The hub, or a proxy before it, cannot answer now."""


class _OffsetMismatch(Exception):
    """The hub has another number of bytes of a package than was assumed."""

    def __init__(self, offset: int) -> None:
        super().__init__()
        self.offset = offset


@contextmanager
def _time_limit(hub: HubAddress, connection: http.client.HTTPConnection) -> Iterator[None]:
    """Close the connection and raise HpcprofError if the block takes longer than `_TIMEOUT_S`."""
    over = Event()

    def end() -> None:
        over.set()
        with suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    connected = connection.sock
    timer = Timer(_TIMEOUT_S, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if not over.is_set():
            raise
    finally:
        timer.cancel()
    if over.is_set():
        raise HpcprofError(f"{hub.url} did not end its answer within {_TIMEOUT_S:g} s; push again to resume.")


def _request(
    hub: HubAddress, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    connection = hub.connect()
    try:
        sent = {"Authorization": f"Bearer {hub.token}", **(headers or {})}
        connection.request(method, path, body, sent)
        with _time_limit(hub, connection):
            answer = connection.getresponse()
            text = answer.read(1 << 20).decode("utf-8", "replace")
    finally:
        connection.close()
    try:
        reply = from_json(text)
    except ValueError:
        reply = {}
    reason = visible(str(reply.get("error") or "")) if isinstance(reply, dict) else ""
    if answer.status >= 500:
        raise _Unavailable(f"it answered {answer.status}{reason and ': '}{reason.rstrip('.')}")
    if answer.status == 409 and isinstance(reply, dict) and isinstance(reply.get("offset"), int):
        raise _OffsetMismatch(reply["offset"])
    if answer.status != 200:
        reason = reason or _PROXY_REFUSALS.get(
            answer.status, "it is not a hub, or a proxy before it keeps pushes out"
        )
        raise HpcprofError(f"{hub.url} refused ({answer.status}): {reason.rstrip('.')}.")
    return reply if isinstance(reply, dict) else {}
