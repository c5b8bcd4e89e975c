"""How finetunectl ends: the documented exit codes, and the one exception that carries a sentence to a person."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a script may rely on; kept in step with docs/finetunectl.md."""

    FINE = 0
    BAD_NEWS = 1
    USAGE = 2
    NO_SUCH_JOB = 3
    AMBIGUOUS_JOB = 4
    UNUSABLE = 5
    REFUSED = 6
    OUR_MISTAKE = 70
    INTERRUPTED = 130


EPILOG = (
    "Exit codes: 0 fine; 1 bad news (problems in a job file, a failed job waited for, a failed check); "
    "2 wrong usage; 3 no such job; 4 several jobs match; 5 spool or daemon unusable; 6 refused, nothing changed; "
    "70 a mistake of finetunectl itself; 130 interrupted."
)


class Sorry(Exception):
    """Ends the command with a sentence on stderr, what to do next, and an exit code."""

    def __init__(self, code: ExitCode, what: str, hint: str = ""):
        self.code = code
        self.hint = hint
        super().__init__(what)
