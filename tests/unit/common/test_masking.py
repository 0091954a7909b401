"""Secrets in commands and their output."""

from __future__ import annotations

import pytest

from hpcprof.common.masking import is_secret, masked, masked_command


@pytest.mark.parametrize(
    "name",
    [
        "--token",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "apiKey",
        "authtoken",
        "PGPASSWORD",
        "--db-passwd",
        "ssh.passphrase",
    ],
)
def test_a_name_with_a_secret_word_is_secret(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["tokenizer", "--keep", "monkey", "keyboard", "KeyError", "PATH", "--steps", "passes", ""]
)
def test_a_name_without_a_secret_word_is_not_secret(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["qstat", "-f", "1.server"], "qstat -f 1.server"),
        (["x", "--token", "abc", "--steps", "5"], "x --token '***' --steps 5"),
        (["x", "--token=abc"], "x '--token=***'"),
        (["x", "--token", "--steps", "5"], "x --token --steps 5"),
        (["docker", "run", "--env", "HF_TOKEN=abc"], "docker run --env 'HF_TOKEN=***'"),
        (["docker", "build", "--build-arg=HF_TOKEN=abc"], "docker build '--build-arg=HF_TOKEN=***'"),
        (["sh", "-c", "A=1 PASSWORD='a b' run"], "sh -c 'A=1 PASSWORD=*** run'"),
        (["x", "postgresql://me:abc@host/db"], "x 'postgresql://me:***@host/db'"),
        (["x", "http://host:8080/a"], "x http://host:8080/a"),
        (["x", "a\nb\x1b[2J"], r"x 'a\nb\x1b[2J'"),
    ],
)
def test_a_command_is_shown_on_one_line_without_its_secrets(command: list[str], shown: str) -> None:
    assert masked_command(command) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Variable_List = A=1,HF_TOKEN=abc,B=2", "Variable_List = A=1,HF_TOKEN=***,B=2"),
        ('{"HF_TOKEN": "a\\"b", "A": "1"}', '{"HF_TOKEN": ***, "A": "1"}'),
        ('{"name": "HF_TOKEN", "value": "abc"}', '{"name": "HF_TOKEN", "value": ***}'),
        ('{"name": "STEPS", "value": "5"}', '{"name": "STEPS", "value": "5"}'),
        ("Password: abc", "Password: ***"),
        ("Authorization: Bearer abcdefgh.ijk", "Authorization: Bearer ***"),
        ("KeyError: 'x'", "KeyError: 'x'"),
        ("token =\nnext", "token =\nnext"),
    ],
)
def test_an_output_is_shown_without_its_secrets(text: str, shown: str) -> None:
    assert masked(text) == shown
