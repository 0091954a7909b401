"""Tags and notes of runs, edited in a browser: the form, and the changes that it sends."""

from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from hpcprof.runs.tags import MAX_NOTE_LENGTH, annotate, check_tags, read_note, read_tags
from hpcprof.serve.context import run_address, served

_MAX_FORM_FIELDS = 10


def note_page(request: Request) -> Response:
    """Offer to edit the tags and the note of a run; at a hub, of a run that was pushed."""
    context = served(request)
    catalogue = context.catalogue
    run = catalogue.find(request.path_params["run"])
    if request.scope.get("grant"):
        pushed = catalogue.store.pushed().get(run.id)
        if pushed is None:
            raise HTTPException(404)
        tags, note = pushed.tags, pushed.note
    else:
        _check_editable(request)
        tags, note = " ".join(read_tags(run, catalogue.runs_dir)), read_note(run, catalogue.runs_dir)
    return context.page(
        "note", title=f"Tags and note: {run.id}", tags=tags, note=note, address=run_address(run.id)
    )


async def keep_note(request: Request) -> Response:
    """Replace the tags and the note of a run of one's own folder."""
    _check_editable(request)
    tags, note = await sent_annotation(request)
    catalogue = served(request).catalogue
    run = await run_in_threadpool(catalogue.find, request.path_params["run"])
    await run_in_threadpool(annotate, run, catalogue.runs_dir, tags, note)
    catalogue.forget()
    return RedirectResponse("/runs", 303)


def may_edit(request: Request) -> bool:
    """Return whether a reader without a grant may edit: only someone with the token of the server."""
    return bool(request.app.state.editable)


def _check_editable(request: Request) -> None:
    if not may_edit(request):
        raise HTTPException(
            403, "to edit, start hpcprof serve --token: without one all users of this machine could."
        )


async def sent_annotation(request: Request) -> tuple[list[str], str]:
    """Return the tags, sorted, and the note of a form, or raise `UsageError`."""
    form = await sent_form(request)
    tags = sorted({*form.get("tags", "").split()})
    check_tags(tags)
    return tags, form.get("note", "").strip()[:MAX_NOTE_LENGTH]


async def sent_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; none of a body of another type."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
        return {}
    try:
        fields = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=_MAX_FORM_FIELDS)
    except ValueError:
        raise HTTPException(400, f"a form has at most {_MAX_FORM_FIELDS} fields.") from None
    return {name: values[0] for name, values in fields.items()}
