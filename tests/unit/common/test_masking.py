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
        (["x", "https://me:a@bc@host/x"], "x 'https://me:***@host/x'"),
        (["curl", "--user=me:abc", "-ume:abc"], "curl '--user=***' '-u***'"),
        (["openssl", "-passin", "pass:abc"], "openssl -passin '***'"),
        (["wandb", "login", "0" * 40], "wandb login '***'"),
        (["x", "--jwt", "abc", "--pass=abc", "--auth", "a:b"], "x --jwt '***' '--pass=***' --auth '***'"),
        (["x", "--pass-through", "5", "--author", "me"], "x --pass-through 5 --author me"),
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
        ("x --token \\\n abc", "x --token \\\n ***"),
        ('{"api_key": ["abc", "abc"], "a": 1}', '{"api_key": ***], "a": 1}'),
        (r"{\"api_key\": \"abc\"}", r"{\"api_key\": ***}"),
        ("Cookie: a=abc; b=abc", "Cookie: ***"),
        ("https://h/c?sv=1&sig=abc&x=2", "https://h/c?sv=1&sig=***&x=2"),
        ("https://hooks.slack.com/services/T0/B0/abc now", "https://hooks.slack.com/services/*** now"),
        ("sh -c 'curl -s -u me:abc x | mysql -pabc'", "sh -c 'curl -s -u *** x | mysql -p***'"),
        ("wandb login --relogin " + "0" * 40, "wandb login --relogin ***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END", "-----BEGIN RSA PRIVATE KEY-----***-----END"),
        ("AIza" + "a" * 35 + " sk_live_" + "b" * 24 + " ASIA" + "C" * 16, "*** *** ***"),
        ("the forward pass: 5, signal=9", "the forward pass: 5, signal=9"),
    ],
)
def test_an_output_is_shown_without_its_secrets(text: str, shown: str) -> None:
    assert masked(text) == shown
