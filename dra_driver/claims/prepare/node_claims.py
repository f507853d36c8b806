"""Builds everything that handles this node's claims, once, below the driver's own directory."""

from collections.abc import Callable

from dra_driver.cdi.edits_cache import EditsCache
from dra_driver.cdi.store import SpecStore
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.claims.prepare.device_metadata import MetadataFiles
from dra_driver.claims.prepare.mig import MigDevices
from dra_driver.claims.prepare.release import Release
from dra_driver.claims.prepare.specs import ClaimSpecs
from dra_driver.claims.prepare.steps import Sharing, Steps
from dra_driver.claims.state.ledger import Ledger
from dra_driver.claims.state.locks import NodeLocks
from dra_driver.devices.mig.making import MigInstances
from dra_driver.devices.mig.refusals import Refusals
from dra_driver.devices.model import InventorySource


class NodeClaims:
    """The objects that handle this node's claims.

    `switches_modes` says whether MIG modes may be switched for claims, `device_metadata` whether
    containers get files with metadata of their devices. `on_failed_undo` is called with the name of
    each step that cannot be undone. `tidy` ends what claims shared and none uses any more; it
    raises StateError. `clock` is monotonic, in seconds.
    """

    def __init__(  # noqa: PLR0913 (the one place where all parts meet)
        self,
        ledger: Ledger,
        locks: NodeLocks,
        *,
        clock: Callable[[], float],
        inventory: InventorySource,
        edits: EditsCache,
        specs: SpecStore,
        sharing: Sharing,
        mig: MigInstances,
        switches: Refusals,
        switches_modes: bool,
        on_failed_undo: Callable[[str], None] = lambda _: None,
        tidy: Callable[[], object] = lambda: None,
        device_metadata: bool = True,
    ) -> None:
        self.ledger = ledger
        self.locks = locks
        self.tidy = tidy
        self.mig = MigDevices(mig, ledger, switches, switches_modes=switches_modes)
        self.steps = Steps(self.mig, sharing)
        metadata = MetadataFiles(ledger.directory, is_on=device_metadata)
        self.specs = ClaimSpecs(specs, metadata, edits, inventory)
        self.release = Release(
            ledger, self.locks, self.specs, self.steps, clock, on_failed=on_failed_undo
        )

    def restore(self, record: ClaimRecord) -> None:
        """Restore sharing and CDI spec of a prepared claim as its record says.

        Raises DeviceError or TransientError if a GPU is not there, StateError if the disk refuses.
        """
        self.steps.ensure(record.steps)
        self.specs.restore(record, self.steps.edits(record.steps))
