"""What NVIDIA's tools say when the driver or a GPU does not work: documented exit statuses, and their words.

Such an answer is a measurement: what was asked about is bad. A tool that is missing, hangs, is killed or prints
something else has measured nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

#: nvidia-smi's exit statuses that mean that GPUs can't be used. Source: man page nvidia-smi(1), "RETURN VALUE", to 15;
#: 16 and 18 are NVML's results of the same number (nvml.h, nvmlReturn_t). Not here: 2, 3, 4 and 13, with which the
#: question was wrong.
NVIDIA_SMI: Mapping[int, str] = {
    6: "no GPU was found",
    8: "a GPU's external power cables are not attached",
    9: "NVIDIA's driver is not loaded",
    10: "the kernel has a problem with the interrupts of a GPU",
    12: "NVIDIA's library NVML is not there or can't be loaded",
    15: "a GPU has fallen off the bus or can't be reached",
    16: "a GPU must be reset",
    18: "driver and library have different versions: packages were changed below the running driver",
}
#: The status of a GPU that works, and whose infoROM is corrupted.
INFOROM = 14
#: What an answer says of a GPU that does not work, in lower case. NVML's texts of its results (nvmlErrorString), and
#: nvidia-smi's own. 255 is the status of every other error, so only the words tell these apart.
WORDS = (
    "couldn't communicate with the nvidia driver",
    "driver/library version mismatch",
    "gpu is lost",
    "gpu requires reset",
    "has fallen off the bus",
    "no devices were found",
    "unable to determine the device handle",
)
_LONGEST = 200


def refusal(status: int, output: str, errors: str) -> str:
    """What nvidia-smi said of the driver or a GPU; empty where it said no such thing."""
    lines = [" ".join(line.split()) for line in (*output.splitlines(), *errors.splitlines())]
    said = next((line for line in lines if any(words in line.lower() for words in WORDS)), "")
    if not said and status not in NVIDIA_SMI:
        return ""
    meaning = NVIDIA_SMI.get(status, "")
    said = said or next((line for line in lines if line and not line.startswith("<")), "")
    return "; ".join(part for part in (meaning, f"nvidia-smi ended with status {status}: {said[:_LONGEST]}") if part)
