"""The reference pages name everything that the code publishes, and nothing else."""

import re
from pathlib import Path

import make
from dra_driver.devices.model import Fabric, NvLink
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.ops.metrics import Metrics
from dra_driver.ops.usage_metrics import UsageMetric
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.project import projection
from scrape import metrics_text

DOCS = Path(__file__).parents[3] / "docs"


def first_cells(page: str) -> set[str]:
    """The code words in the first column of a page's tables."""
    rows = re.findall(r"^\| *(`[^|]*?) *\|", (DOCS / page).read_text(), re.MULTILINE)
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


def test_every_published_attribute_and_capacity_has_a_row() -> None:
    instance = make.mig_device(0, "3g.40gb", 4)
    joined: dict[str, object] = {
        "nvlinks": (NvLink(number=0, is_active=True, to_switch=True),),
        "fabric": Fabric(state=3, status=0, cluster="9f0b1d1e-36b1-4ad2-8b4e-5b5ad8f6c001"),
    }
    divided = make.inventory(
        make.gpu(0, mig=make.mig(instance)),
        make.gpu(1, mig=make.mig(), **joined),
        make.gpu(2, **joined),
    )
    division = Division(
        count=10, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=False
    )
    offers = (
        ShareOffer(divisions={make.place(divided.gpus[1]): division}),
        ShareOffer(consumable=Consumable.of("2")),
    )
    devices = [one for offer in offers for one in projection(divided, share=offer).devices]
    published = {
        re.sub(r"memorySlice\d+", "memorySlice<N>", name)
        for device in devices
        for name in (*device["attributes"], *device["capacity"])  # type: ignore[misc]
    }
    assert first_cells("device-attributes.md") == published


def test_every_metric_has_a_row() -> None:
    metrics = Metrics(driver="gpu.nvidia.com", node="n", version="0")
    text = metrics_text(metrics.wsgi_app)
    exported = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    exported = {name for name in exported if not name.endswith("_created")}
    page = (DOCS / "operations.md").read_text()
    missing = {name for name in exported if name.startswith("nvidia_dra") and name not in page}
    # The page names it together with its sibling, by its end.
    assert missing - {"nvidia_dra_node_unprepare_errors_total"} == set()


def test_every_metric_of_usage_has_a_row_of_its_own() -> None:
    rows = " ".join(first_cells("usage.md"))
    wanted = {f"nvidia_dra_{metric.value[0]}" for metric in UsageMetric}
    assert {name for name in wanted if not re.search(rf"\b{name}\b", rows)} == set()


def test_every_link_between_pages_leads_somewhere() -> None:
    root = DOCS.parent
    pages = [*DOCS.rglob("*.md"), root / "README.md", root / "CONTRIBUTING.md"]
    broken = [
        f"{page.relative_to(root)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []
