"""Section `backup`: backups that the controller makes on a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, PrivateAttr

from gpucluster.spec.sections.fields import AbsolutePath, FileName, Resolved, SpecPart

_DAY = "(Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_HOUR, _MINUTE = "([01][0-9]|2[0-3])", "[0-5][0-9]"
#: What systemd, the units and the age of an alert all understand: days of the week, and times of the day.
SCHEDULE_PATTERN = (
    rf"^(hourly|daily|weekly|({_DAY}((\.\.|,){_DAY})* )?(\*-\*-\* )?(\*|{_HOUR}(,{_HOUR})*):{_MINUTE}(:{_MINUTE})?)$"
)
#: The folder of the default directory, on the home share.
DEFAULT_FOLDER = ".gpucluster-backups"
#: Hours without a new backup after which an alert fires: two days, or two more than a week.
_OVERDUE_HOURS, _OVERDUE_HOURS_BY_WEEK = 48, 9 * 24

Keep = Annotated[int, Field(ge=1, le=365)]


class BackupSchedule(SpecPart):
    """Encrypted backups that the controller makes on a schedule."""

    certificate: FileName | None = Field(
        default=None,
        description="File with an X.509 certificate (PEM) for which backups are encrypted; relative to this file. Its "
        "private key never comes to the cluster: keep it where a lost cluster does not take it along. `null`: no "
        "backups on a schedule.",
        examples=["backup.pem"],
    )
    schedule: str = Field(
        default="*-*-* 02:30:00",
        pattern=SCHEDULE_PATTERN,
        description="When, in `software.timezone`, as a calendar expression of systemd: `hourly`, `daily`, `weekly`, "
        "or days of the week and times of the day, such as `Mon,Thu 04:00`. A controller that was off at that time "
        "does it when it starts.",
        examples=["Mon..Fri *-*-* 04:00:00"],
    )
    keep: Keep = Field(
        default=14, description="How many of these backups stay. The oldest are deleted once a new one is complete."
    )
    directory: AbsolutePath | None = Field(
        default=None,
        description="Directory on the controller. It must exist, and only root may be able to write to it. `null`: a "
        f"directory of root on the home share, `{DEFAULT_FOLDER}/NAME`, which is created.",
        examples=["/mnt/backup/demo"],
    )
    _certificates: Mapping[str, tuple[str, ...]] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any) -> None:
        """Take the content of the file from the validation context."""
        if isinstance(context, Resolved):
            self._certificates = context.certificates

    @property
    def certificate_pem(self) -> str | None:
        """The certificate as PEM; None if there is no schedule."""
        return None if self.certificate is None else next(iter(self._certificates.get(self.certificate, ())), None)

    @property
    def certificate_end(self) -> datetime | None:
        """Until when the certificate is valid; None if there is no schedule."""
        if self.certificate_pem is None:
            return None
        from cryptography import x509

        return x509.load_pem_x509_certificate(self.certificate_pem.encode()).not_valid_after_utc

    @property
    def overdue_hours(self) -> int:
        """After how many hours without a new backup an alert fires."""
        by_week = self.schedule == "weekly" or self.schedule[0].isupper()
        return _OVERDUE_HOURS_BY_WEEK if by_week else _OVERDUE_HOURS
