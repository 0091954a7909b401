"""The hub: runs that were pushed from other machines, for a team. Each project is a folder of its own.

A grant leads to one project: its readers see no other project, because each project has its own application
over its own results.
"""

import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore, Condition, Lock
from urllib.parse import parse_qsl, urlencode

import msgspec
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hpcprof.common.errors import DamagedInput, HpcprofError, RepeatedRow, StoreError, UsageError
from hpcprof.common.masking import masked
from hpcprof.common.private import make_private
from hpcprof.common.units import format_bytes, visible
from hpcprof.profiles.event_folders import PUSHED
from hpcprof.results.across.package import keep_package, unpacked
from hpcprof.results.collect.rank_task import sha256_of
from hpcprof.results.store.database import error_line, public_address
from hpcprof.results.store.store import Store, open_store
from hpcprof.results.store.tables import PushedRow
from hpcprof.serve.annotations import sent_annotation, sent_form
from hpcprof.serve.app import MAX_THREADS, answer, few_threads, page_templates, pages_of
from hpcprof.serve.context import as_html, as_json, run_address
from hpcprof.serve.grants import PUSH, Grant, Grants
from hpcprof.serve.guard import (
    MAX_ADDRESS_BYTES,
    SESSION_SECONDS,
    Access,
    Guard,
    bearer_token,
    sentence,
)
from hpcprof.serve.log import say
from hpcprof.serve.pages import static_file
from hpcprof.serve.sql import query_turns
from hpcprof.serve.turns import Turns

_SIGN_IN_PATH = "/sign-in"
_STATIC_PATH = "/static/"
_PUSH_PATH = "/api/push/"
_MAX_SESSIONS = 10_000


class Proxy(msgspec.Struct, frozen=True):
    """A reverse proxy that names the user of a request: the header that it sets, and its address.

    Without an address every request is the proxy's: the hub listens on a Unix socket that only it can open.
    """

    header: str
    address: str = ""


class Sessions(msgspec.Struct):
    """The browsers that have signed in: by cookie, the SHA-256 of the token and the end."""

    _known: dict[str, tuple[str, float]] = msgspec.field(default_factory=dict)

    def begin(self, sha256: str) -> str:
        """Return the cookie of a new session."""
        now = time.monotonic()
        self._known = {cookie: session for cookie, session in self._known.items() if session[1] > now}
        if len(self._known) >= _MAX_SESSIONS:
            del self._known[next(iter(self._known))]
        cookie = secrets.token_urlsafe(32)
        self._known[cookie] = sha256, now + SESSION_SECONDS
        return cookie

    def token(self, cookie: str) -> str | None:
        """Return the SHA-256 of the token of a session; None if there is none."""
        sha256, end = self._known.get(cookie, (None, 0.0))
        return sha256 if end > time.monotonic() else None


class _UnknownUser(Exception):
    def __init__(self, user: str) -> None:
        super().__init__(f"{visible(user[:200])} has no access here; whoever runs this hub can grant it.")


class Project:
    """A project of a hub: its folder, its results, its uploads, and its pages."""

    def __init__(self, folder: Path, db: str, turns: Turns) -> None:
        make_private(folder)
        self.store: Store = open_store(db, folder)
        self.store.prepare()
        self.uploads = Uploads(folder, self.store)
        self.pages = pages_of(folder, db, all_stored=True, turns=turns)
        self.pages.add_exception_handler(
            StoreError, lambda request, error: answer(request, _public_sentence(error), 503)
        )
        self.pages.state.unsaid = str(folder)

    def changed(self) -> None:
        """Have the list of runs made again."""
        self.pages.state.served.catalogue.forget()


class Hub:
    """The answers of a hub.

    ``folder`` gets a folder of each project, and has the grants. ``db`` is a PostgreSQL database, in which
    each project has a schema; without one there is an SQLite file in each folder. ``access`` has the names
    under which it is served, and the name of the cookie of a session.
    """

    def __init__(self, folder: Path, db: str | None, access: Access) -> None:
        self.grants, self.sessions = Grants(folder), Sessions()
        self._folder, self._db, self._access = folder.absolute(), db, access
        self._projects: dict[str, Project] = {}
        self._lock = Lock()
        self._templates = page_templates()
        self._pushing: dict[str, CapacityLimiter] = {}
        self._reading: dict[str, CapacityLimiter] = {}
        self._turns = query_turns()

    def project(self, name: str) -> Project:
        """Return a project, which is made at its first use."""
        with self._lock:
            if name not in self._projects:
                folder = self._folder / name
                db = _schema_of(self._db, name) if self._db else str(folder / "hpcprof.db")
                self._projects[name] = Project(folder, db, self._turns)
            return self._projects[name]

    def sign_in_page(self, request: Request) -> Response:
        """Ask for a token."""
        page = self._templates.get_template("serve/sign_in.html.j2")
        return as_html(page.render(wrong="wrong" in request.query_params))

    async def sign_in(self, request: Request) -> Response:
        """Begin a session with the token of a form, and go on to the page that the reader came for."""
        grant = self.grants.of_token((await sent_form(request)).get("token", "").strip())
        wanted = request.query_params.get("next", "/runs")
        if grant is None:
            return RedirectResponse(f"{_SIGN_IN_PATH}?{urlencode({'wrong': '', 'next': wanted})}", 303)
        # A path that begins with two slashes would name another host.
        answer = RedirectResponse("/" + wanted.lstrip("/\\"), 303)
        # lax: a link in a message opens a page. Changes must come from a page of this server.
        self._access.set_session(answer, request.headers, self.sessions.begin(grant.sha256), "lax")
        return answer

    async def push(self, request: Request) -> Response:
        """Take a part of a package, or say how far it is."""
        grant, digest = request.scope["grant"], request.path_params["digest"]
        if grant.may != PUSH:
            return _READ_ONLY_ANSWER
        project = await run_in_threadpool(self.project, grant.project)
        uploads = project.uploads
        # Threads of its own: pushes hold up no page, and no push of another token.
        places = self._pushing.setdefault(grant.name, CapacityLimiter(_PARTS_AT_ONCE))
        try:
            if request.method == "PUT":
                offset, length = (_number(request, name) for name in ("upload-offset", "upload-length"))
                async with places:
                    part = await request.body()
                    receive = partial(uploads.receive, digest, grant, offset, length, part)
                    reply = await run_sync(receive, limiter=CapacityLimiter(1))
            else:
                reply = await run_in_threadpool(uploads.progress, digest, grant)
        except PushRefused as error:
            progress = {} if error.offset is None else {"offset": error.offset}
            return as_json({"error": str(error), **progress}, error.status)
        if reply.run:
            project.changed()
        address = run_address(reply.run) if reply.run else None
        return as_json({"offset": reply.offset, "run": reply.run or None, "address": address})

    async def annotate(self, request: Request) -> Response:
        """Replace the tags and the note of a run."""
        grant = request.scope["grant"]
        if grant.may != PUSH:
            return _READ_ONLY_ANSWER
        try:
            tags, note = await sent_annotation(request)
        except UsageError as error:
            return as_json({"error": str(error)}, 400)
        project = await run_in_threadpool(self.project, grant.project)
        await run_in_threadpool(project.store.annotate, request.path_params["run"], tags, note)
        project.changed()
        return RedirectResponse("/runs", 303)

    async def pages(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the pages of the project that the grant is for."""
        if self._db is not None and scope["path"] in ("/sql", "/api/sql"):
            sentence = "a hub on PostgreSQL answers no SQL: a query could read other projects."
            await as_json({"error": sentence}, 403)(scope, receive, send)
            return
        grant = scope["grant"]
        project = await run_in_threadpool(self.project, grant.project)
        if scope["path"] == "/api/sql":  # it has turns of its own
            await project.pages(scope, receive, send)
            return
        async with self._reading.setdefault(grant.name, CapacityLimiter(_MAX_CONCURRENT_PAGES)):
            await project.pages(scope, receive, send)

    def identify(self, scope: Scope, proxy: Proxy | None) -> Grant | None:
        """Return the grant by token, the user that its proxy names (or raise `_UnknownUser`), or session."""
        headers = Headers(scope=scope)
        if (token := bearer_token(headers)) is not None:
            return self.grants.of_token(token)
        client = scope.get("client")
        if proxy is not None and (not proxy.address or (client and client[0] == proxy.address)):
            # A proxy that passes its users' own header on would let them choose the address.
            users = headers.getlist(proxy.header)
            if users:
                grant = self.grants.of_user(users[0]) if len(users) == 1 else None
                if grant is None:
                    raise _UnknownUser(", ".join(users))
                return grant
        signed_in = self.sessions.token(self._access.session_of(headers))
        return self.grants.of_hash(signed_in) if signed_in else None


_READ_ONLY_ANSWER = as_json({"error": "this token may read only."}, 403)


def make_hub(folder: Path, db: str | None, access: Access, proxy: Proxy | None = None) -> ASGIApp:
    """Return the application of a hub, from the values that `Hub` takes."""
    if db is not None and not db.startswith("postgresql"):
        raise UsageError("--accept has an SQLite file in each project: --db takes PostgreSQL only.")
    hub = Hub(folder, db, access)
    app = Starlette(
        routes=[
            Route(_SIGN_IN_PATH, hub.sign_in_page, methods=["GET"]),
            Route(_SIGN_IN_PATH, hub.sign_in, methods=["POST"]),
            Route(f"{_PUSH_PATH}{{digest}}", hub.push, methods=["GET", "PUT"]),
            Route("/runs/{run}/note", hub.annotate, methods=["POST"]),
            Route(f"{_STATIC_PATH}{{name}}", static_file),
            Mount("/", hub.pages),
        ],
        exception_handlers={HpcprofError: _error_response, HTTPException: _error_response},
        lifespan=few_threads,
    )
    return _HubGuard(app, access, lambda scope: hub.identify(scope, proxy))


class _HubGuard(Guard):
    def __init__(self, app: ASGIApp, access: Access, identify: Callable[[Scope], Grant | None]) -> None:
        super().__init__(app, access)
        self._identify = identify

    def _most_bytes(self, scope: Scope) -> int:
        return MAX_PART_BYTES if scope["path"].startswith(_PUSH_PATH) else super()._most_bytes(scope)

    def _sign_in(self, scope: Scope) -> Response | None:
        path = str(scope["path"])
        by_program = path.startswith("/api/") or path == "/metrics" or scope["method"] != "GET"
        try:
            grant = self._identify(scope)
        except _UnknownUser as error:
            # A token in the form for it would change nothing: the proxy goes on naming this user.
            return as_json({"error": str(error)}, 403) if by_program else sentence(403, str(error))
        except HpcprofError:
            return as_json({"error": "the hub cannot read its grants."}, 503)
        if grant is not None:
            scope["grant"] = grant
            return None
        if path == _SIGN_IN_PATH or path.startswith(_STATIC_PATH):
            return None
        if by_program:
            has_token = Headers(scope=scope).get("authorization", "").lower().startswith("bearer ")
            wrong = "the token is unknown, was removed, or has expired."
            return as_json(
                {"error": wrong if has_token else "a token is needed: Authorization: Bearer TOKEN."}, 401
            )
        return RedirectResponse(f"{_SIGN_IN_PATH}?{urlencode({'next': _requested_page(scope)})}", 303)


def _error_response(request: Request, error: Exception) -> Response:
    """Answer a push; where the disk or the database cannot be used, it is tried again."""
    if isinstance(error, HTTPException):
        return as_json({"error": error.detail}, error.status_code)
    return as_json({"error": _public_sentence(error)}, 503)


def _public_sentence(error: Exception) -> str:
    """Return the sentence of an error for readers; where the database is goes to the hub's terminal only."""
    if not isinstance(error, StoreError):
        return str(error)
    say(str(error))
    return "the hub's database cannot be used now."


def _requested_page(scope: Scope) -> str:
    """Return the page that a request is for, without a token in its address. Browsers keep its #fragment."""
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    query = urlencode([pair for pair in pairs if pair[0] != "token"])
    path = scope.get("raw_path", b"/").partition(b"?")[0].decode("latin-1")
    wanted = f"{path}?{query}" if query else path
    return wanted if len(wanted) <= MAX_ADDRESS_BYTES // 4 else "/runs"


def _number(request: Request, header: str) -> int:
    value = request.headers.get(header, "")
    if not value.isdecimal() or len(value) > 15:
        raise PushRefused(400, f"the header {header} is a number of bytes.")
    return int(value)


def _schema_of(db: str, project: str) -> str:
    schema = f"hpcprof_{project}"
    engine = create_engine(db)
    try:
        with engine.begin() as connection:
            connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{schema}"'))  # a checked name
    except SQLAlchemyError as error:
        raise StoreError(f"{public_address(make_url(db))} cannot be used: {error_line(error)}.") from None
    finally:
        engine.dispose()
    return _in_schema(db, schema)


def _in_schema(db: str, schema: str) -> str:
    """Return the URL of a schema of a PostgreSQL database; the last search_path of its options counts."""
    url = make_url(db)
    options = [*url.normalized_query.get("options", ()), f"-csearch_path={schema}"]
    return url.update_query_dict({"options": " ".join(options)}).render_as_string(hide_password=False)


MAX_PART_BYTES = 8 << 20
"""Maximum bytes of a package in one request."""

MAX_PACKAGE_BYTES = 8 << 30
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FORGET_PACKAGE_S = 7 * 24 * 3600
"""The age at which the beginning of a package that nobody finishes is removed."""

_MAX_OPEN_PACKAGES = 100
"""Maximum number of unfinished packages of a token."""


_MAX_UNPACKING = 4
"""Maximum number of packages of a project that are unpacked at a time."""

_PARTS_AT_ONCE = 4
"""Maximum number of parts of a token that are in memory, or being kept, at the same time; others wait."""


_MAX_CONCURRENT_PAGES = MAX_THREADS // 2
"""Maximum number of pages of a token that are made at the same time; others wait."""


class PushRefused(HpcprofError):
    """A part, or a package, that the hub does not take, with the HTTP status that says so."""

    def __init__(self, status: int, sentence: str, offset: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.offset = status, offset


class UploadProgress(msgspec.Struct, frozen=True):
    """The bytes that the hub has of a package, and its run once it is kept."""

    offset: int
    run: str = ""


class Uploads:
    """Uploads to one project; what a killed hub left half kept is removed, unless another hub runs."""

    def __init__(self, folder: Path, store: Store) -> None:
        self._folder, self._store = folder, store
        self._parts = folder / ".incoming"
        self._lock, self._free = Lock(), Condition()
        self._busy: set[Path] = set()
        self._unpacking_places = BoundedSemaphore(_MAX_UNPACKING)
        # Open until this process ends.
        self._running = os.open(folder / ".running", os.O_CREAT | os.O_RDWR, 0o600)
        with suppress(OSError):  # another hub has the lock, and may just be keeping a package
            flock(self._running, LOCK_EX | LOCK_NB)
            for leftover in (*self._parts.glob(".unpacking-*"), *self._unlisted_paths()):
                shutil.rmtree(leftover, ignore_errors=True)

    def _unlisted_paths(self) -> list[Path]:
        sha256 = {row.sha256 for row in self._store.pushed().values()}
        return [path for path in (self._folder / PUSHED).glob("*") if path.name not in sha256]

    def progress(self, digest: str, grant: Grant) -> UploadProgress:
        """Return the progress of the package with a SHA-256."""
        path = self._part(digest, grant)
        run = self._kept_run(digest)
        return UploadProgress(0, run) if run else UploadProgress(_size(path))

    def receive(self, digest: str, grant: Grant, offset: int, length: int, part: bytes) -> UploadProgress:
        """Add a part to a package of ``length`` bytes; with the last one it is checked and kept.

        Raises `PushRefused` if the part does not follow the received parts or exceeds the token's quota, or
        the package is invalid; the project keeps the run as it was. If the part cannot be written, the
        received parts remain, and the push can resume.
        """
        path = self._part(digest, grant)
        with self._only_one_part(path):
            with self._lock:
                if run := self._kept_run(digest):
                    return UploadProgress(length, run)
                self._parts.mkdir(mode=0o700, exist_ok=True)
                self._forget_old()
                room = self._free_quota(grant, path, length)
                have = _size(path)
                end = have + len(part)
                # The last part is empty if the hub ended before it could keep the package.
                if offset != have or end > length or (not part and end < length):
                    raise PushRefused(409, f"the hub has {have:,} bytes of this package.", have)
                try:
                    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW, 0o600)
                    with open(descriptor, "ab") as file:  # noqa: PTH123 (a descriptor)
                        file.write(part)
                except OSError as error:
                    raise HpcprofError(f"the package cannot be written: {error.strerror}.") from None
            if end < length:
                return UploadProgress(end)
            try:
                with self._unpacking_places:
                    run = self._keep(path, digest, grant, room)
            except PushRefused:
                path.unlink(missing_ok=True)
                raise
            path.unlink(missing_ok=True)
            return UploadProgress(length, run)

    @contextmanager
    def _only_one_part(self, path: Path) -> Iterator[None]:
        with self._free:
            while path in self._busy:
                self._free.wait()
            self._busy.add(path)
        try:
            yield
        finally:
            with self._free:
                self._busy.remove(path)
                self._free.notify_all()

    def _keep(self, path: Path, digest: str, grant: Grant, room: int) -> str:
        if sha256_of([path]) != digest:
            raise PushRefused(400, "the package arrived with another SHA-256: push it again.")
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        try:
            with unpacked(path, self._parts, room) as package, self._lock:
                run = package.run_id
                before = self._store.pushed().get(run)
                if before is not None and before.who != grant.name:
                    raise PushRefused(
                        403, f"{run} was pushed by {before.who}, and no other token replaces it."
                    )
                # Others of the token's packages may have been kept while this one was unpacked.
                if package.bytes > self._free_quota(grant, path, 0):
                    raise PushRefused(
                        413, f"the token's quota of {format_bytes(grant.quota_bytes)} is used up."
                    )
                listed = package.described.listed
                public_fields = {
                    "command": masked(listed.command or "") or None,
                    "reason": masked(listed.reason),
                }
                text = msgspec.json.encode(msgspec.structs.replace(listed, **public_fields)).decode()
                row = PushedRow(run, grant.name, now, digest, package.bytes, text)
                try:
                    keep_package(package, self._store, self._folder, row)
                except HpcprofError:
                    # On a full disk, what was written so far must not stay.
                    if not self._kept_run(digest):
                        shutil.rmtree(self._folder / PUSHED / digest, ignore_errors=True)
                    raise
                return run
        except RepeatedRow:
            raise PushRefused(400, "a table of the package has a row twice.") from None
        except DamagedInput as error:
            raise PushRefused(400, f"{error}.") from None

    def _kept_run(self, digest: str) -> str:
        return next((row.run_id for row in self._store.pushed().values() if row.sha256 == digest), "")

    def _free_quota(self, grant: Grant, path: Path, length: int) -> int:
        stored = sum(row.bytes for row in self._store.pushed().values() if row.who == grant.name)
        begun = [
            part
            for part in self._parts.iterdir()
            if part.name.rpartition("-")[0] == grant.name and part != path
        ]
        if len(begun) >= _MAX_OPEN_PACKAGES:
            raise PushRefused(413, f"the token has begun {_MAX_OPEN_PACKAGES} packages: finish one first.")
        pending = sum(map(_size, begun))
        if length > MAX_PACKAGE_BYTES or stored + pending + length > grant.quota_bytes:
            limits = f"the limit of {format_bytes(MAX_PACKAGE_BYTES)} or, with "
            limits += (
                f"{format_bytes(stored + pending)} before it, the quota of {format_bytes(grant.quota_bytes)}"
            )
            raise PushRefused(413, f"a package of {format_bytes(length)} exceeds {limits}.")
        return grant.quota_bytes - stored - pending

    def _part(self, digest: str, grant: Grant) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise PushRefused(400, "the address names no SHA-256.")
        return self._parts / f"{grant.name}-{digest}"

    def _forget_old(self) -> None:
        for part in self._parts.iterdir():
            with suppress(OSError):
                if part.stat().st_mtime < time.time() - _FORGET_PACKAGE_S:
                    # A hub that was killed leaves the folder in which it unpacked a package.
                    shutil.rmtree(part) if part.is_dir() else part.unlink()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
