"""What a GPU found wrong after the call that asked for it had returned: said where the host next waits for the device.

Stage: eager (run time).  In: compiled programs say which checks they have started (``ran``), the host where it waits
(``look``).  Out: the exception, at the latest at ``cuda.synchronize()``, ``.item()``, ``.cpu()``, ``print`` and all else that
brings a value to the host.  Nothing here waits itself, and where no check has run since the last look, nothing is asked.
Read next: ``codegen_cupy.launch``, whose kernels check indices.
"""

from __future__ import annotations

from typing import Any, Protocol

from tinytorch.device import Device, array_module, emulated


class LateError(IndexError):
    """An index out of range in an earlier call.  Running the present call again would not find it."""


class Check(Protocol):
    """Words that a kernel writes when something is wrong."""

    def look(self) -> None:
        """Raise ``LateError`` if they are written, and forget it."""
        ...


#: Checks that ran since the last look, and the stream of each.  Programs add to it at every call.
ran: dict[Check, int] = {}


def look(everywhere: bool = False) -> None:
    """Raise what the checks have found that ran before the host waited for the current stream, or for all of them."""
    if not ran:
        return
    stream = 0 if emulated() else int(array_module(Device("cuda")).cuda.get_current_stream().ptr)
    for check, on in list(ran.items()):
        if everywhere or on == stream:
            ran.pop(check, None)
            check.look()


def host_copy(array: Any) -> Any:
    """A device's array as NumPy's; NumPy's own as it is."""
    if hasattr(array, "get"):
        array = array.get()
    if ran:
        look()
    return array
