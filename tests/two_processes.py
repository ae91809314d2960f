"""Two processes that meet as those of torchrun do."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

import torch


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _rank(rank: int, port: int, life: Callable[..., None], args: tuple[Any, ...]) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = str(port)
    torch.set_num_threads(1)
    life(rank, *args)


def together(life: Callable[..., None], *args: object) -> list[int | None]:
    """Exit codes of two processes that call a function with their rank and the arguments."""
    context, port = multiprocessing.get_context("spawn"), _port()
    processes = [context.Process(target=_rank, args=(rank, port, life, args)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes
