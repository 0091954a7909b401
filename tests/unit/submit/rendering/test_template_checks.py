"""A template is checked for what would be lost without an error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.submit.rendering.template_checks import check_template
from hpcprof.submit.rendering.templates import template_files

EXTENDS = '{% extends "job/slurm.sh.j2" %}\n'
WRAPPER = 'srun /bin/sh "$run_dir/wrapper.sh" \\\n    {{ program | argv }}'


def launch(text: str) -> str:
    return f"{EXTENDS}{{% block launch %}}\n{text}\n{{% endblock %}}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (EXTENDS + "\n{% block lunch %}{% endblock %}", "mine.sh.j2, line 3; did you mean 'launch'? Valid: "),
        (launch("srun {{ program | argv }}"), "line 2: block launch does not start the wrapper"),
        (launch(WRAPPER), "line 2: block launch loses the exit code"),
        (launch(f"{WRAPPER}\necho done\nstatus=$?"), "line 2: block launch loses the exit code"),
        (
            launch(f"{WRAPPER} | tee log\nstatus=$?"),
            "line 2: in block launch the exit code is that of the last",
        ),
        (
            EXTENDS + "{% block epilogue %}sync{% endblock %}",
            "line 2: block epilogue does not record the exit",
        ),
        (
            EXTENDS + "\n\n{{ nonsense }}{% block modules %}\n{{ nonsense }}{% endblock %}",
            "line 5: 'nonsense' is",
        ),
        (EXTENDS + '{% block modules %}\n{% include "no.j2" %}{% endblock %}', "mine.sh.j2, line 3: "),
        (
            EXTENDS + "{% block directives %}\nulimit -s 9\n{{ super() }}{% endblock %}",
            "'#SBATCH --job-name=true' comes after the command 'ulimit -s 9'",
        ),
        ("#!/bin/bash\nmodule list\n#PBS -l select=2\n", "'#PBS -l select=2' comes after the command"),
    ],
)
def test_what_a_template_would_lose_is_named_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    mine = tmp_path / "mine.sh.j2"
    mine.write_text(text)
    with pytest.raises(UsageError, match=re.escape(says)) as refused:
        check_template(mine)
    assert str(mine) in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/bash\necho a plain script\n",
        "#SBATCH -n 1\n\ncat <<'EOF' >other.sh\n#SBATCH -n 2\nEOF\n##SBATCH -n 3\n",
        "#SBATCH -n 1\n  # indented\n#SBATCH -t 5\ntrue\n",
        "true\ncat <<\\EOF >a\n #EOF\n#PBS -l x\nEOF\ncat >b <<-'END-OF.B'\n#PBS -l y\n\tEND-OF.B\n",
        "paste /dev/fd/3 - 3<<A <<B\n#SBATCH -n 2\nA\n#SBATCH -n 3\nB\ntrue\n",
        "true\nprintf '#!/bin/bash\n#SBATCH -n 2\ntrue\n' | sbatch\n",
        EXTENDS + "{% block prologue %}{{ super() }}{% block mine %}{% endblock %}{% endblock %}",
        launch(f"# for the log\n{WRAPPER}\n# kept\nstatus=$?"),
        launch(f"set -o pipefail\n{WRAPPER} | tee log\nstatus=$?"),
        launch(f"status=0\n{WRAPPER} || status=$?"),
        launch(f"{WRAPPER} '|'\nstatus=$?"),
    ],
)
def test_a_template_that_loses_nothing_passes(tmp_path: Path, text: str) -> None:
    mine = tmp_path / "mine.sh.j2"
    mine.write_text(text)
    check_template(mine)


def test_the_templates_of_hpcprof_pass() -> None:
    for name, file in template_files().items():
        if name.endswith(".sh.j2") and name != "job/array.sh.j2":
            check_template(file)
