"""Runs on other machines: a transport by OpenSSH below the commands of the schedulers.

A run of a host has its folder there, and a copy here of all but its profiles. `host` runs commands there,
`folders` sends and fetches files, and `mirror` keeps the copy. No scheduler knows of it: their commands name
paths of the copy, which are replaced on the way (`hpcprof.submit.schedulers.command`).
"""
