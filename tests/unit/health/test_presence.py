"""Which MIG devices of claims are gone, look by look."""

from msgspec.structs import replace
from structlog.testing import capture_logs

import make
from dra_driver.devices.health.presence import Presence
from dra_driver.devices.model import Inventory, MigDevice

ONE = make.mig_device(0, "1g.10gb", 2)
TWO = make.mig_device(0, "2g.20gb", 4)


def node(*devices: MigDevice, problem: str | None = None) -> Inventory:
    mig = replace(make.mig(*devices), problem=problem)
    return make.inventory(make.gpu(0, mig=mig))


class Looks:
    """Looks, one after the other, and the claims that ask between them."""

    def __init__(self) -> None:
        self.records = {"claim": object()}
        self.seen = Presence(lambda record: record in self.records.values())

    def find(self, inventory: Inventory) -> None:
        self.seen.end(self.seen.begin(), inventory)

    def gone(self, *devices: MigDevice, claim: str = "claim") -> list[bool]:
        record = self.records[claim]
        return [
            self.seen.is_gone(device.uuid, device.parent, claim=claim, record=record)
            for device in devices
        ]


def test_what_a_look_does_not_find_is_gone_until_one_does() -> None:
    looks = Looks()
    assert looks.gone(ONE, TWO) == [False, False]
    looks.find(node(ONE, TWO))
    assert looks.gone(ONE, TWO) == [False, False]
    with capture_logs() as logs:
        looks.find(node(TWO))
        looks.find(node(TWO))
        assert looks.gone(ONE, TWO) == [True, False]
        looks.find(node(ONE, TWO))
    assert looks.gone(ONE, TWO) == [False, False]
    assert [(log["event"], log["mig_device"]) for log in logs] == [
        ("mig device of a claim is gone", ONE.uuid),
        ("mig device of a claim is back", ONE.uuid),
    ]


def test_a_device_that_was_made_during_a_look_is_not_missed_by_it() -> None:
    looks = Looks()
    number = looks.seen.begin()
    assert looks.gone(ONE) == [False]
    looks.seen.end(number, node())
    assert looks.gone(ONE) == [False]
    looks.find(node())
    assert looks.gone(ONE) == [True]


def test_what_was_asked_for_before_the_first_look_is_missed_by_that_one() -> None:
    looks = Looks()
    looks.gone(ONE)
    looks.find(node())
    assert looks.gone(ONE) == [True]


def test_a_look_that_cannot_tell_changes_nothing() -> None:
    looks = Looks()
    looks.gone(ONE, TWO)
    looks.find(node(TWO))
    looks.find(node(problem="its MIG devices keep changing"))
    looks.find(replace(make.inventory(), gpus=()))
    looks.find(replace(make.inventory(), gpus=(), problem="no GPU driver"))
    assert looks.gone(ONE, TWO) == [True, False]


def test_a_gpu_whose_mig_mode_is_off_has_none() -> None:
    looks = Looks()
    looks.gone(ONE)
    looks.find(make.inventory(make.gpu(0)))
    assert looks.gone(ONE) == [True]


def test_what_a_claim_gave_back_is_no_loss_of_it_nor_of_the_next_claim_there() -> None:
    looks = Looks()
    looks.gone(ONE)
    looks.find(node(ONE))
    del looks.records["claim"]
    with capture_logs() as logs:
        looks.find(node())
        looks.records["next"] = object()
        assert looks.gone(ONE, claim="next") == [False]
        looks.find(node(ONE))
    assert logs == []


def test_what_a_claim_lost_is_no_loss_of_the_next_claim_there() -> None:
    looks = Looks()
    looks.gone(ONE)
    looks.find(node())
    assert looks.gone(ONE) == [True]
    del looks.records["claim"]
    looks.records["next"] = object()
    assert looks.gone(ONE, claim="next") == [False]


def test_a_claim_prepared_again_during_a_look_has_lost_nothing() -> None:
    looks = Looks()
    looks.gone(ONE)
    number = looks.seen.begin()
    looks.records["claim"] = object()
    looks.seen.end(number, node())
    assert looks.gone(ONE) == [False]
    looks.find(node(ONE))
    assert looks.gone(ONE) == [False]


def test_a_claim_prepared_again_after_a_loss_is_well_at_once() -> None:
    looks = Looks()
    looks.gone(ONE)
    looks.find(node())
    looks.records["claim"] = object()
    assert looks.gone(ONE) == [False]


def test_what_several_claims_share_is_lost_to_each_that_still_has_it() -> None:
    looks = Looks()
    looks.records["other"] = object()
    looks.gone(ONE)
    looks.gone(ONE, claim="other")
    looks.find(node())
    del looks.records["claim"]
    looks.find(node())
    assert looks.gone(ONE, claim="other") == [True]
