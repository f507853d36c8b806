"""All steps, in the order in which they are taken: what only reads comes first."""

from hardware import claims, client, injected, memory, mig, mps, namespaces, reads

STEPS = (
    reads.inventory,
    reads.time_slice,
    reads.slices,
    claims.gpu,
    claims.share,
    injected.container,
    injected.computes,
    client.computes,
    reads.set_time_slice,
    claims.time_slicing,
    reads.compute_mode,
    claims.mps,
    claims.share_by_mps,
    injected.limited,
    mps.percentages,
    mps.exclusive,
    memory.limit,
    memory.other_path,
    namespaces.groups,
    namespaces.later,
    namespaces.partition,
    namespaces.root,
    mig.mode_while_open,
    mig.device_names,
    claims.mig,
)
