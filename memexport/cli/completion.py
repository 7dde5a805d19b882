"""`memexport completion`: what a shell needs to complete memexport's commands, options and files.

The scripts ask memexport itself, as click lets a shell do: https://click.palletsprojects.com/shell-completion.
They are our own, as those of click put a space behind a folder, lose `--option=` and quote a `~` in zsh, and
cut descriptions at their first comma in fish.
"""

from __future__ import annotations

from typing import Final

import click

from memexport.cli.terminal import answer

_BASH: Final = """\
_memexport_completion() {
    local IFS=$'\\n' answer line type value word words=()
    # Bash takes --option=value for three words.
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        if (( ${#words[@]} )) && [[ $word == = || ${words[-1]} == --*= ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
    done
    answer=$(IFS=' '; COMP_WORDS="${words[*]}" COMP_CWORD=$(( ${#words[@]} - 1 )) \\
        _MEMEXPORT_COMPLETE=bash_complete "$1")
    for line in $answer; do
        IFS=, read -r type value <<< "$line"
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done
    # Behind a folder, one goes on.
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == */ ]] && compopt -o nospace
    return 0
}

complete -o nosort -F _memexport_completion memexport
"""

_ZSH: Final = """\
#compdef memexport

_memexport() {
    local -a answer described plain folders
    local type value about
    (( ! $+commands[memexport] )) && return 1
    answer=("${(@f)$(COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) \\
        _MEMEXPORT_COMPLETE=zsh_complete memexport)}")
    # Of --option=value, the value alone is completed.
    [[ ${words[CURRENT]} == --*=* ]] && compset -P '*='
    for type value about in "${(@)answer}"; do
        case $type in
            dir) _path_files -/ ;;
            file) _path_files -f ;;
            plain)
                if [[ $about != _ ]]; then
                    described+=("$value:$about")
                elif [[ $value == */ ]]; then
                    folders+=("$value")
                else
                    plain+=("$value")
                fi ;;
        esac
    done
    (( $#described )) && _describe -V unsorted described -U -i "$IPREFIX"
    # Nothing in them needs quotes, and a ~ must have none. Behind a folder, one goes on.
    (( $#plain )) && compadd -U -Q -i "$IPREFIX" -V unsorted -a plain
    (( $#folders )) && compadd -U -Q -i "$IPREFIX" -S '' -V unsorted -a folders
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _memexport "$@"
else
    compdef _memexport memexport
fi
"""

_FISH: Final = """\
function _memexport_completion
    set -l token (commandline -ct)
    # Of --option=value, memexport gives the value alone.
    set -l option (string match -r -- '^--[^=]+=' "$token"; or echo)
    set -l asked COMP_WORDS=(commandline -cp) COMP_CWORD="$token" _MEMEXPORT_COMPLETE=fish_complete
    for line in (env $asked memexport)
        set -l parts (string split -m 1 , -- $line)
        switch $parts[1]
            case dir
                string replace -r -- '^' "$option" (__fish_complete_directories $parts[2])
            case file
                string replace -r -- '^' "$option" (__fish_complete_path $parts[2])
            case plain
                echo -- "$option$parts[2]"
        end
    end
end

complete --no-files --keep-order --command memexport --arguments "(_memexport_completion)"
"""

_SCRIPTS: Final = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_SCRIPTS)))
def command(shell: str) -> None:
    """Print a script that makes SHELL complete commands, options and recordings.

    \b
    bash: memexport completion bash > ~/.local/share/bash-completion/completions/memexport
    zsh:  memexport completion zsh > DIR/_memexport, with DIR in $fpath
    fish: memexport completion fish > ~/.config/fish/completions/memexport.fish
    """  # noqa: D301 - \b keeps the lines apart
    answer(_SCRIPTS[shell].rstrip())
