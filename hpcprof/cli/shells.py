"""The shells for which click completes words, with what it does not do for values such as ``KEY=VALUE``."""

import os

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

from hpcprof.common.errors import HpcprofError

_WORD_BREAKS = frozenset("=:")
"""The characters that bash takes for the end of a word, and that a value may have."""


class _WholeWord(ShellComplete):
    """Offers ``--site=polaris`` where ``--site=pol`` is incomplete; click offers the value alone."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return the words that may follow, in the form of the incomplete one."""
        try:
            items = super().get_completions(args, incomplete)
        except HpcprofError:  # an unknown command
            return []
        option, separator, _ = incomplete.partition("=")
        if not separator or not option.startswith("-"):
            return items
        return [
            CompletionItem(f"{option}={item.value}", item.type, item.help) if item.type == "plain" else item
            for item in items
        ]


class _Bash(_WholeWord, BashComplete):
    """Bash splits words at ``=`` and ``:``, and replaces only what follows the last of these."""

    source_template = BashComplete.source_template.replace(
        "    return 0\n", '    [[ "${COMPREPLY[0]-}" != *[=.] ]] || compopt -o nospace\n\n    return 0\n', 1
    )

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the incomplete one, and that one, each as a whole."""
        words = split_arg_string(os.environ["COMP_WORDS"])[: int(os.environ["COMP_CWORD"]) + 1]
        at_end = len(words) <= int(os.environ["COMP_CWORD"])
        whole: list[str] = []
        for word in words:
            joined = whole and (set(word) <= _WORD_BREAKS or whole[-1][-1:] in _WORD_BREAKS)
            whole[-1:] = [whole[-1] + word] if joined else [*whole[-1:], word]
        incomplete = "" if at_end else whole.pop()
        self._kept = max((incomplete.rfind(mark) for mark in _WORD_BREAKS), default=-1) + 1
        return whole[1:], incomplete

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return an item without what bash keeps of the incomplete word."""
        value = item.value[self._kept :] if item.type == "plain" else item.value
        return f"{item.type},{value}"


class _Zsh(_WholeWord, ZshComplete):
    """Zsh, without a space after ``KEY=``."""

    source_template = ZshComplete.source_template.replace(
        "        compadd -U -V unsorted -a completions\n",
        "        local -a suffix\n"
        "        [[ $completions[1] != *[=.] ]] || suffix=(-S '')\n"
        '        compadd -U -V unsorted "${suffix[@]}" -a completions\n',
    )


class _Fish(_WholeWord, FishComplete):
    """Fish, which adds no space after ``KEY=`` of its own accord."""


def register_shells() -> None:
    """Have click complete for bash, zsh and fish by the classes above."""
    for shell in (_Bash, _Zsh, _Fish):
        add_completion_class(shell)
