"""The helpers beside a program on its node and, in ``hooks`` and some files here, within its Python.

Each run folder has copies in ``node/`` and ``hook/``, which run without hpcprof and import nothing but the
standard library: under the node's own Python from 3.6, or the program's from 3.8 on. Nothing in them may make
the job fail, or wait.
"""
