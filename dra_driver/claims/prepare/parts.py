"""Builds once all that knows of this node's claims, below the driver's own directory."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from dra_driver.cdi.edits_cache import EditsCache
from dra_driver.cdi.store import SpecStore
from dra_driver.claims.model.devices import InventorySource
from dra_driver.claims.prepare.cleanup import Cleanup
from dra_driver.claims.prepare.device_metadata import MetadataFiles
from dra_driver.claims.prepare.leftovers import Leftovers
from dra_driver.claims.prepare.mig import MigDevices
from dra_driver.claims.prepare.realise import Realiser
from dra_driver.claims.prepare.specs import ClaimSpecs
from dra_driver.claims.prepare.strategies import Strategies
from dra_driver.claims.prepare.transaction import Transaction
from dra_driver.claims.state.holdings import Holdings
from dra_driver.claims.state.ownership import Ownership
from dra_driver.claims.state.records import RecordStore
from dra_driver.devices.mig.making import MigInstances
from dra_driver.devices.mig.refusals import Refusals
from dra_driver.sharing.base import Sharing


class NodeParts(Struct, frozen=True, kw_only=True):
    """What preparing is made of on this node.

    `switches_modes` says whether MIG modes may be switched for claims, `device_metadata`
    whether containers get files with metadata of their devices.
    """

    inventory: InventorySource
    edits: EditsCache
    specs: SpecStore
    strategies: Mapping[str, Sharing]
    mig: MigInstances
    switches: Refusals
    switches_modes: bool
    on_failed_undo: Callable[[str], None] = lambda _: None
    tidy: Callable[[], object] = lambda: None
    device_metadata: bool = True


class NodeClaims(Struct, frozen=True, kw_only=True):
    """What knows of this node's claims.

    `tidy` ends what claims share and none of them uses any more; it raises StateError.
    """

    records: RecordStore
    ownership: Ownership
    holdings: Holdings
    specs: ClaimSpecs
    mig: MigDevices
    strategies: Strategies
    cleanup: Cleanup
    leftovers: Leftovers
    transaction: Transaction
    tidy: Callable[[], object]


def open_claims(
    holdings: Holdings, parts: NodeParts, *, step: Callable[[str], None] = lambda _: None
) -> NodeClaims:
    """Return what knows of the claims in the driver's directory.

    `step` is called with the name of each step that is done; tests end the process there.
    """
    records, ownership = holdings.records, holdings.ownership
    modes, on_failed = parts.switches_modes, parts.on_failed_undo
    mig = MigDevices(parts.mig, holdings, parts.inventory, parts.switches, switches_modes=modes)
    realiser = Realiser(mig, parts.mig, ownership, switches_modes=modes)
    strategies = Strategies(parts.strategies)
    metadata = MetadataFiles(records.directory, is_on=parts.device_metadata)
    specs = ClaimSpecs(parts.specs, metadata, parts.edits, parts.inventory, strategies, step)
    cleanup = Cleanup(
        holdings, specs, strategies, realiser, parts.inventory, on_failed=on_failed, step=step
    )
    leftovers = Leftovers(holdings, specs, strategies, mig, on_failed)
    transaction = Transaction(holdings, mig, realiser, strategies, specs, step=step)
    return NodeClaims(
        records=records,
        ownership=ownership,
        holdings=holdings,
        specs=specs,
        mig=mig,
        strategies=strategies,
        cleanup=cleanup,
        leftovers=leftovers,
        transaction=transaction,
        tidy=parts.tidy,
    )
