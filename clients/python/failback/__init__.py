"""Failback for Python: a service that keeps itself registered, and follows others, through the sidecar.

    import failback

    with failback.Agent() as agent:                      # unix:/run/failback/agent.sock
        agent.register("orders", "orders-1", "10.0.0.7", 8080)
        for payments in agent.follow("payments"):        # a list each time it changes
            print([f"{p.address}:{p.port}" for p in payments], payments.stale)

With asyncio, failback.aio.Agent has the same calls, to be awaited. What the sidecar has accepted it carries to the
registry, through the registry's outages; a sidecar that restarts is given everything again.
"""

import pkgutil

# The generated messages, failback.registry.v1 and its like, may be in another folder.
__path__ = pkgutil.extend_path(__path__, __name__)

from failback.aio import Instance, Instances, Refused  # noqa: E402
from failback.client import Agent  # noqa: E402

__all__ = ["Agent", "Instance", "Instances", "Refused"]
__version__ = "0.1.0"
