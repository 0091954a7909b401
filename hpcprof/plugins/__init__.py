"""The interface for packages that add to hpcprof by entry points: its names stay, others may move.

Each module serves one group of entry points, and imports little: `analyses` (``hpcprof.analyses``), `causes`
(``hpcprof.causes``), `readers` (``hpcprof.readers``), `profilers` (``hpcprof.profilers``) and `schedulers`
(``hpcprof.schedulers``). `data` has the tables of a profile and the results of an analysis; it imports numpy
and pandas, so import it where a function needs it, not beside a declaration.
"""
