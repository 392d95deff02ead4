"""The address under which a node's processes reach each other, and the network interface that has it."""

import os
import socket
import struct


def address_here() -> tuple[str, int]:
    """On a node: the address by which Ray knows it, and a free port."""
    import ray

    with socket.socket() as free:
        free.bind(("", 0))
        return ray.util.get_node_ip_address(), free.getsockname()[1]


def use_interface() -> None:
    """On a node: make torch.distributed use the interface of that address, unless the user has named one.

    By default it takes the interface that the host name resolves to, which on many machines is the loopback.
    """
    import ray

    found = interface_of(ray.util.get_node_ip_address())
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if found else ():
        os.environ.setdefault(variable, found)


def interface_of(address: str) -> str:
    """The network interface that has an IPv4 address; empty if none is found."""
    try:
        import fcntl
    except ImportError:  # not on this system
        return ""
    found = ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                # SIOCGIFADDR of Linux: the address is at byte 20 of the answer.
                answer = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))
            except OSError:  # has no address
                continue
            one = socket.inet_ntoa(answer[20:24])
            # All of 127.0.0.0/8 is the loopback.
            if one == address or (one.startswith("127.") and address.startswith("127.")):
                found = name
    return found
