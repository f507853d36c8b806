"""The pods of one case: their logs and status, read repeatedly.

In: the cluster and the namespace. Out: what each tenant has reported so far, and how far the clock
of their machine is ahead.
"""

import time
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from msgspec.structs import replace

from dra_driver.bench import lines
from dra_driver.bench.gathering import Gathered
from dra_driver.bench.pods import manifests
from dra_driver.bench.pods.pod_status import is_over, why_not_pulled
from dra_driver.errors import InvalidError, NotFoundError, UnavailableError
from dra_driver.kube.client import KubeClient
from dra_driver.kube.resource import PODS, Call

JsonObject = dict[str, Any]

_TIMEOUT = 15.0
_LOG = {"container": manifests.TENANT, "limitBytes": str(1 << 20)}


def pod_log(client: KubeClient, namespace: str, pod: str, query: Mapping[str, str]) -> str:
    """Return what a container of a pod has written; `query` holds container and limits."""
    call = Call(verb="get", resource=PODS, name=pod, namespace=namespace, subresource="log")
    return client.send("GET", call, query=query, timeout=_TIMEOUT).data.decode(errors="replace")


class CasePods:
    """The pods of a case, and what they have reported so far.

    `launched` maps the numbers of those that were created to the time.
    """

    def __init__(self, client: KubeClient, namespace: str, are_commands: Sequence[bool]) -> None:
        self._client = client
        self._namespace = namespace
        self._are_commands = are_commands
        self._ahead: float | None = None
        self._ended: set[int] = set()
        self.launched: dict[int, float] = {}
        self.heard: list[Gathered] = [Gathered() for _ in are_commands]

    def look(self) -> Self:
        """Read the logs of all pods that have not reported a result.

        Once a command is ready, its pod's status shows whether it has ended.
        """
        for at in self.launched:
            if self._is_over(at):
                continue
            with suppress(UnavailableError):  # the API server is briefly unavailable
                if not self._are_commands[at] or self.heard[at].ready is None:
                    self.heard[at] = self._listen(at)
                elif is_over(self.pod(at)):
                    self._ended.add(at)
        return self

    def _listen(self, number: int) -> Gathered:
        before, name = self.heard[number], manifests.pod_name(number)
        try:
            text = pod_log(self._client, self._namespace, name, _LOG)
        except (NotFoundError, InvalidError):  # no such container yet
            seconds = time.monotonic() - self.launched[number]
            why = why_not_pulled(self.pod(number), seconds)
            reason = f"its image cannot be pulled: {why}"
            return replace(before, failed=lines.Failed(reason=reason) if why else None)
        said = [word for line in text.splitlines() if (word := lines.heard(line)) is not None]
        for word in said:
            if isinstance(word, (lines.Ready, lines.Waiting)):
                ahead = word.at - time.monotonic()
                self._ahead = ahead if self._ahead is None else max(ahead, self._ahead)
        ready = next((each for each in said if isinstance(each, lines.Ready)), None)
        took = before.launch_seconds
        if ready is not None and took is None:
            took = time.monotonic() - self.launched[number]
        return Gathered(
            ready=ready,
            done=next((each for each in said if isinstance(each, lines.Done)), None),
            failed=next((each for each in said if isinstance(each, lines.Failed)), None)
            or self._crashed(number, text),
            launch_seconds=took,
        )

    def _crashed(self, number: int, text: str) -> lines.Failed | None:
        """Return the result of a container that ended without reporting one."""
        if any(mark in text for mark in ('"event":"done"', '"event":"failed"')):
            return None
        if not is_over(self.pod(number)):
            return None
        last = text.strip().splitlines()[-1:] or ["it wrote nothing"]
        return lines.Failed(reason=f"its container ended: {last[0]}")

    @property
    def are_settled(self) -> bool:
        """Whether each pod is ready, or never will be."""
        made = (self.heard[at] for at in self.launched)
        return all(pod.ready is not None or pod.failed is not None for pod in made)

    def are_over(self, but: Container[int] = ()) -> bool:
        """Whether each has reported a result, or its command has ended, except those of `but`."""
        return all(self._is_over(at) for at in range(len(self.heard)) if at not in but)

    def _is_over(self, at: int) -> bool:
        pod = self.heard[at]
        return pod.done is not None or pod.failed is not None or at in self._ended

    def able(self) -> Sequence[int]:
        """Return the numbers of those that are ready."""
        return [at for at, pod in enumerate(self.heard) if pod.ready and pod.failed is None]

    def now(self) -> float:
        """Return the time of their machine; a little earlier, by the age of their lines.

        If no pod has reported anything, no pod is given a time either.
        """
        return time.monotonic() + (self._ahead or 0.0)

    def pod(self, at: int) -> JsonObject:
        """Return a pod from the API server."""
        name = manifests.pod_name(at)
        return self._client.get(PODS, name, namespace=self._namespace, timeout=_TIMEOUT)
