"""What the driver notes of the GPUs that it leaves out, for the commands on its node.

In: what the setting and the Node's label leave out, and what of it was found. Out: a sealed file in
the driver's directory, written when something of it has changed. Commands that look at the node by
themselves leave out the same by it, for none of them asks for the label.
"""

from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.devices.exclusion import Exclusion
from dra_driver.errors import StateError
from dra_driver.host.envelope import MALFORMED, seal, unseal
from dra_driver.host.files import read_whole, write_whole

FILE = "exclusion.json"
"""Its name in the driver's directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusionNote:
    """What is left out.

    Attributes:
        exclusion: setting and label.
        excluded: a line for each GPU that is.
        unmatched: a line for each word that leaves nothing out.
    """

    exclusion: Exclusion = field(default_factory=Exclusion)
    excluded: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()


def write_note(directory: Path, note: ExclusionNote) -> None:
    """Write the note.

    Raises:
        StateError: the disk cannot be written.
    """
    payload = {
        "setting": note.exclusion.setting,
        "label": note.exclusion.label,
        "excluded": note.excluded,
        "unmatched": note.unmatched,
    }
    path = directory / FILE
    try:
        write_whole(path, seal(payload), mode=0o600, durable=False)
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror}") from error


def read_note(directory: Path) -> ExclusionNote:
    """Return the note; an empty one where there is none, or it is damaged."""
    try:
        found = read_whole(directory / FILE)
        if found is None:
            return ExclusionNote()
        payload = unseal(found[0])
        return ExclusionNote(
            exclusion=Exclusion(setting=str(payload["setting"]), label=str(payload["label"])),
            excluded=tuple(map(str, payload["excluded"])),
            unmatched=tuple(map(str, payload["unmatched"])),
        )
    except (OSError, StateError, *MALFORMED):
        return ExclusionNote()
