"""How a length of time reads."""


def in_words(seconds: float) -> str:
    """A duration: 45 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    total = max(0, round(seconds))
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60} s" if total < 600 and total % 60 else f"{total // 60} min"
    if total < 86400:
        return f"{total // 3600} h {total % 3600 // 60} min"
    return f"{total // 86400} d {total % 86400 // 3600} h"
