"""The interface for agents: a server of the Model Context Protocol, a client of `results` and `report`.

`tools` has the questions, `submitting` the two tools that start work, `answers` the form of all answers, and
`server` is the only module that imports the protocol's SDK.
"""
