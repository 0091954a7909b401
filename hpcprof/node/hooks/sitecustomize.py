"""Start of Python on a rank: the ``sitecustomize`` that it would have run without this one, then the hook.

hpcprof copied this file into the run. Every Python from 2.7 on can read it; one before 3.8 gets no hook,
which is noted in ``state/`` of the run. The program finds its own modules as without hpcprof: the folder
leaves ``sys.path``, and this module ``sys.modules``.
"""

import os
import sys

if __name__ == "sitecustomize":
    _this_module = sys.modules.pop("sitecustomize")  # Python 2 clears a module without references
    _folder = os.path.dirname(os.path.abspath(__file__))
    _start = None
    if sys.version_info >= (3, 8):
        _loaded = set(sys.modules)
        _start = __import__("hpcprof_start")
        # Before 3.10, a second import of atexit would forget the handlers.
        _kept_modules = {"atexit"} if sys.version_info < (3, 10) else set()
        for _name in set(sys.modules) - _loaded - _kept_modules:
            del sys.modules[_name]
    sys.path[:] = [_entry for _entry in sys.path if os.path.abspath(_entry) != _folder]
    sys.path_importer_cache.pop(_folder, None)
    try:
        # Without another sitecustomize, Python ignores the error, as it does without this one.
        __import__("sitecustomize")
    finally:
        if _start is not None:
            _start.watch(_folder)
        elif os.environ.get("HPCPROF_RUN_DIR") and os.environ.get("HPCPROF_RANK"):
            _note = os.path.join(os.environ["HPCPROF_RUN_DIR"], "state", "rank%05d.python")
            try:
                _file = os.open(
                    _note % int(os.environ["HPCPROF_RANK"]), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666
                )
                # Python 2 would import a codec to encode a text.
                os.write(_file, bytearray(map(ord, sys.version.split()[0] + "\n")))
                os.close(_file)
            except (OSError, ValueError):
                pass
