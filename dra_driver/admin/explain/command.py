"""`dra-driver explain pod|claim NAME`: why it does not fit, and what to change.

In: settings, and the API server. Out: on stdout an explanation for people or JSON for programs.
Exit status: 0 it fits or has its devices, 1 it does not fit, 2 that could not be learnt. Nothing is
changed.
"""

import os
import sys
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import CliPositionalArg, SettingsConfigDict

from dra_driver.admin.explain.cluster import explained
from dra_driver.admin.explain.view import as_json, as_text
from dra_driver.common_settings import CommandSettings
from dra_driver.errors import DriverError
from dra_driver.kube.connect import connect

_NOT_LEARNT = 2


class Explain(CommandSettings):
    """Say why a pod or claim does not fit, and what to change.

    Asks the API server what all nodes offer, what claims have, and what this one asks for. Exit
    status: 0 it fits or has its devices, 1 it does not fit, 2 that could not be learnt.
    """

    model_config = SettingsConfigDict(
        env_prefix="explain_",
        cli_prog_name="dra-driver explain",
        cli_shortcuts={"output": "o", "namespace": "n"},
    )

    kind: CliPositionalArg[Literal["pod", "claim"]] = Field(
        description="Whether NAME is a pod or a ResourceClaim."
    )
    name: CliPositionalArg[str] = Field(description="The name of the pod or claim.")
    namespace: str = Field("default", description="Its namespace.")
    output: Literal["text", "wide", "json"] = Field(
        "text", description="Form of what is printed; wide adds every device and why."
    )
    kubeconfig: Path | None = Field(
        None,
        description="Kubeconfig file; without one, those of KUBECONFIG, ~/.kube/config, or the "
        "pod's service account.",
    )
    context: str = Field("", description="Context of the kubeconfig.")

    def cli_cmd(self) -> None:
        """Ask and print. Ends the process with status 1 or 2 unless it fits."""
        try:
            client = connect(self.kubeconfig, self.context, environment=os.environ)
            try:
                found = explained(client, kind=self.kind, name=self.name, namespace=self.namespace)
            finally:
                client.close()
        except DriverError as error:
            sys.stderr.write(f"error: {error}\n")
            raise SystemExit(_NOT_LEARNT) from error
        if self.output == "json":
            sys.stdout.write(as_json(found))
        else:
            sys.stdout.write(as_text(found, wide=self.output == "wide"))
        if not found.fits:
            raise SystemExit(_NOT_LEARNT if found.fits is None else 1)
