"""Settings of `dra-driver take-over`. Names and variables are those of the driver's settings."""

from pathlib import Path

from dra_driver.commands import common_settings
from dra_driver.commands.command_line import option
from dra_driver.commands.common_settings import SECONDS_OR_OFF, MigSetting
from dra_driver.node.feature_gates import checked_gates


class TakeOverSettings(common_settings.RootSettings):
    """What to take over, and where it is."""

    plan: bool = option(default=False, help="Only list what would be taken over or left.")
    wait: float = option(
        default=60.0,
        check=SECONDS_OR_OFF,
        help="Seconds to wait for passing problems, such as a running NVIDIA DRA driver; 0: off.",
    )
    kubelet_plugins_directory_path: Path = common_settings.KUBELET_PLUGINS_DIRECTORY_PATH
    mig: MigSetting = common_settings.MIG
    vfio: bool = common_settings.VFIO
    feature_gates: str = option(
        default="",
        check=checked_gates,
        variable=True,
        help="NVIDIA's feature gates, such as A=true,B=false.",
    )
