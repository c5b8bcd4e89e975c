"""The one base of everything that is written to a file: frozen, typed, and readable by older and newer releases."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


class Record(BaseModel):
    """A frozen value with a JSON form. Unknown keys are ignored, so that a release can be rolled back."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def _in_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("a time needs a zone, as in 2026-11-30T22:15:00Z")
    return moment.astimezone(UTC)


UtcTime = Annotated[datetime, AfterValidator(_in_utc)]
