"""The C library of OTF2, from the package ``otf2``.

The functions of the package make several objects of Python for each event. Here the library calls functions
that only append to arrays, which reads ten times as many events per second
(docs/explanation/performance.md).
"""

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from hpcprof.common.errors import DamagedInput, reading

U8, U32, U64, POINTER = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
I64 = ctypes.c_int64
_INT, TEXT = ctypes.c_int, ctypes.c_char_p
_EVENT_ARGUMENTS = (U64, U64, U64, POINTER, POINTER)
"""Types of the leading fields of each event: location, time, position, user data and attributes."""

Callbacks = Mapping[str, tuple[Sequence[Any], Callable[..., int]]]
"""For each kind of record the types of its fields and the function to call, which returns 0."""

_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "OTF2_Error_GetDescription": (TEXT, _INT),
    "OTF2_Reader_Open": (POINTER, TEXT),
    "OTF2_Reader_GetGlobalDefReader": (POINTER, POINTER),
    "OTF2_Reader_GetDefReader": (POINTER, POINTER, U64),
    "OTF2_Reader_GetEvtReader": (POINTER, POINTER, U64),
    "OTF2_GlobalDefReaderCallbacks_New": (POINTER,),
    "OTF2_EvtReaderCallbacks_New": (POINTER,),
    "OTF2_GlobalDefReaderCallbacks_Delete": (None, POINTER),
    "OTF2_EvtReaderCallbacks_Delete": (None, POINTER),
    "OTF2_Reader_SetSerialCollectiveCallbacks": (_INT, POINTER),
    "OTF2_Reader_RegisterGlobalDefCallbacks": (_INT, POINTER, POINTER, POINTER, POINTER),
    "OTF2_Reader_RegisterEvtCallbacks": (_INT, POINTER, POINTER, POINTER, POINTER),
    "OTF2_Reader_ReadAllGlobalDefinitions": (_INT, POINTER, POINTER, POINTER),
    "OTF2_Reader_ReadAllLocalDefinitions": (_INT, POINTER, POINTER, POINTER),
    "OTF2_Reader_ReadAllLocalEvents": (_INT, POINTER, POINTER, POINTER),
    "OTF2_Reader_SelectLocation": (_INT, POINTER, U64),
    "OTF2_Reader_OpenDefFiles": (_INT, POINTER),
    "OTF2_Reader_OpenEvtFiles": (_INT, POINTER),
    "OTF2_Reader_CloseDefFiles": (_INT, POINTER),
    "OTF2_Reader_CloseDefReader": (_INT, POINTER, POINTER),
    "OTF2_Reader_CloseEvtReader": (_INT, POINTER, POINTER),
    "OTF2_Reader_GetCreator": (_INT, POINTER, POINTER),
    "OTF2_Reader_Close": (_INT, POINTER),
}
"""The result and the arguments of the functions of the library."""


class LibraryError(Exception):
    """Damage that the library found; its text is the library's description."""


@cache
def _library() -> ctypes.CDLL:
    try:
        from _otf2.Config import lib_path
    except ImportError:
        raise DamagedInput("an OTF2 archive needs the package otf2: pip install 'hpcprof[otf2]'.") from None
    # A handle of its own: the package declares other types for the same functions.
    library = ctypes.CDLL(lib_path())
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.OTF2_Error_RegisterCallback.argtypes = [POINTER, POINTER]
    library.OTF2_Error_RegisterCallback.restype = POINTER
    library.OTF2_Error_RegisterCallback(_SILENT_CALLBACK, None)
    return library


_LIBC_FREE = ctypes.CDLL(None).free
_LIBC_FREE.argtypes = [POINTER]
_SILENT_CALLBACK = ctypes.CFUNCTYPE(_INT, POINTER, TEXT, U64, TEXT, _INT, TEXT, POINTER)(
    lambda user, file, line, function, code, text, values: code
)


class Handle(msgspec.Struct, frozen=True):
    """An open archive."""

    _handle: int

    @property
    def creator(self) -> str:
        """The program that wrote the archive; empty if unknown."""
        pointer = POINTER()
        _call("OTF2_Reader_GetCreator", self._handle, ctypes.byref(pointer))
        text = ctypes.cast(pointer, TEXT).value or b""
        _LIBC_FREE(pointer)
        return text.decode("utf-8", "replace")

    def read_definitions(self, callbacks: Callbacks) -> None:
        """Read the definitions of the whole archive; only once.

        Raises LibraryError if the library finds damage.
        """
        reader = _library().OTF2_Reader_GetGlobalDefReader(self._handle)
        with _register_callbacks("GlobalDef", self._handle, reader, callbacks, (POINTER,)):
            _read("OTF2_Reader_ReadAllGlobalDefinitions", self._handle, reader)

    def read_events(self, location: int, callbacks: Callbacks) -> int:
        """Read the events of a location, whose times the library puts on the archive's clock.

        The result counts the events in the archive, also those without a callback. Raises LibraryError if the
        library finds damage.
        """
        library = _library()
        _call("OTF2_Reader_SelectLocation", self._handle, location)
        # Not every archive has local definitions.
        if library.OTF2_Reader_OpenDefFiles(self._handle) == 0:
            reader = library.OTF2_Reader_GetDefReader(self._handle, location)
            if reader:
                _read("OTF2_Reader_ReadAllLocalDefinitions", self._handle, reader)
                _call("OTF2_Reader_CloseDefReader", self._handle, reader)
            _call("OTF2_Reader_CloseDefFiles", self._handle)
        _call("OTF2_Reader_OpenEvtFiles", self._handle)
        reader = library.OTF2_Reader_GetEvtReader(self._handle, location)
        with _register_callbacks("Evt", self._handle, reader, callbacks, _EVENT_ARGUMENTS):
            count = _read("OTF2_Reader_ReadAllLocalEvents", self._handle, reader)
        _call("OTF2_Reader_CloseEvtReader", self._handle, reader)
        return count


@contextmanager
def open_handle(path: Path) -> Iterator[Handle]:
    """Open the archive of an anchor file.

    Raises DamagedInput if the package ``otf2`` is not installed, or the library cannot open the archive.
    """
    with reading(path):
        path.open("rb").close()
    library = _library()
    handle = library.OTF2_Reader_Open(os.fsencode(path))
    try:
        if not handle or library.OTF2_Reader_SetSerialCollectiveCallbacks(handle) != 0:
            raise DamagedInput(f"{path} is not the anchor file of an OTF2 archive, or is damaged.")
        yield Handle(handle)
    finally:
        if handle:
            library.OTF2_Reader_Close(handle)


@contextmanager
def _register_callbacks(
    kind: str, handle: int, reader: int | None, callbacks: Callbacks, leading_types: Sequence[Any]
) -> Iterator[None]:
    library = _library()
    if not reader:
        raise LibraryError("there is no such part in the archive")
    callback_set = getattr(library, f"OTF2_{kind}ReaderCallbacks_New")()
    functions = []
    for name, (types, function) in callbacks.items():
        functions.append(ctypes.CFUNCTYPE(_INT, *leading_types, *types)(function))
        setter = getattr(library, f"OTF2_{kind}ReaderCallbacks_Set{name}Callback")
        setter.restype, setter.argtypes = _INT, [POINTER, POINTER]
        _check(setter(callback_set, functions[-1]))
    _call(f"OTF2_Reader_Register{kind}Callbacks", handle, reader, callback_set, None)
    getattr(library, f"OTF2_{kind}ReaderCallbacks_Delete")(callback_set)
    yield


def _read(name: str, handle: int, reader: int) -> int:
    count = U64()
    _call(name, handle, reader, ctypes.byref(count))
    return count.value


def _call(name: str, *arguments: object) -> None:
    _check(getattr(_library(), name)(*arguments))


def _check(code: int) -> None:
    if code != 0:
        text: bytes = _library().OTF2_Error_GetDescription(code) or b"unknown error"
        raise LibraryError(text.decode("utf-8", "replace").rstrip("."))
