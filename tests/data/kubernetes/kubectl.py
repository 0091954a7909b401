"""Stands for kubectl in the tests: keeps objects in the JSON file $KUBECTL_STATE and notes each call."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import yaml

Object = dict[str, Any]
Flags = dict[str, str]

STATE = Path(os.environ["KUBECTL_STATE"])
KINDS = {"mpijobs.kubeflow.org": "MPIJob", "mpijob": "MPIJob", "configmap": "ConfigMap", "pods": "Pod"}
SHOWN = {"MPIJob": "mpijob.kubeflow.org", "ConfigMap": "configmap", "Pod": "pod"}


def options(arguments: list[str]) -> tuple[Flags, list[str]]:
    parts = (a[2:].partition("=") for a in arguments if a.startswith("--"))
    flags = {name: value for name, _, value in parts}
    return flags, [a for a in arguments if not a.startswith("--")]


def fail(sentence: str) -> NoReturn:
    print(sentence, file=sys.stderr)
    sys.exit(1)


def create(state: Object, flags: Flags) -> int:
    documents = [d for d in yaml.safe_load_all(sys.stdin.read()) if d]
    failed = False
    for document in documents:
        kind, name = document["kind"], document["metadata"]["name"]
        document["metadata"].setdefault("namespace", flags.get("namespace", "default"))
        if kind == "MPIJob" and not state["operator"]:
            failed = True
            print(
                f'error: resource mapping not found for name: "{name}" namespace: "" from "STDIN": no '
                'matches for kind "MPIJob" in version "kubeflow.org/v2beta1"\n'
                "ensure CRDs are installed first",
                file=sys.stderr,
            )
        elif find(state, kind, name, document["metadata"]["namespace"]):
            failed = True
            print(
                f'Error from server (AlreadyExists): error when creating "STDIN": {SHOWN[kind]} "{name}" '
                "already exists",
                file=sys.stderr,
            )
        else:
            state["objects"].append(document)
            print(f"{SHOWN[kind]}/{name}")
    return 1 if failed else 0


def find(state: Object, kind: str, name: str, namespace: str) -> list[Object]:
    return [
        o
        for o in state["objects"]
        if (o["kind"], o["metadata"]["name"], o["metadata"]["namespace"]) == (kind, name, namespace)
    ]


def get(state: Object, flags: Flags, words: list[str]) -> int:
    kinds = {KINDS[word] for word in words[1].split(",")}
    key, _, value = flags.get("selector", "").partition("=")
    found = [
        o
        for o in state["objects"]
        if o["kind"] in kinds
        and o["metadata"]["namespace"] == flags.get("namespace", "default")
        and (not key or o["metadata"].get("labels", {}).get(key) == value)
    ]
    print(json.dumps({"apiVersion": "v1", "kind": "List", "items": found}))
    return 0


def delete(state: Object, flags: Flags, words: list[str]) -> int:
    code = 0
    for word in words[1:]:
        kind, _, name = word.partition("/")
        found = find(state, KINDS[kind], name, flags.get("namespace", "default"))
        if not found and "ignore-not-found" not in flags:
            print(f'Error from server (NotFound): {kind} "{name}" not found', file=sys.stderr)
            code = 1
        state["objects"] = [o for o in state["objects"] if o not in found]
        if found:
            print(f'{SHOWN[KINDS[kind]]} "{name}" deleted')
    return code


def main() -> None:
    state = json.loads(STATE.read_text())
    state["calls"].append(sys.argv[1:])
    flags, words = options(sys.argv[1:])
    code = 0
    try:
        if state["down"]:
            fail(
                "The connection to the server localhost:8080 was refused - "
                "did you specify the right host or port?"
            )
        if words[0] == "get" and "mpijobs" in words[1] and not state["operator"]:
            fail('error: the server doesn\'t have a resource type "mpijobs"')
        code = {"create": lambda: create(state, flags), "get": lambda: get(state, flags, words)}.get(
            words[0], lambda: delete(state, flags, words)
        )()
    finally:
        STATE.write_text(json.dumps(state))
    sys.exit(code)


main()
