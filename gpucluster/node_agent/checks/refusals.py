"""What NVIDIA's tools print when they can't do what they should: documented exit statuses, and their words.

Such an answer is a measurement: its subject is bad. A tool that is missing, hangs, is killed or prints
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
#: Those of them that show nothing of the hardware: the driver or its library is not there, or was changed.
OF_SOFTWARE = tuple(NVIDIA_SMI[status] for status in (9, 12, 18))
#: The status of a GPU that works, and whose infoROM is corrupted.
INFOROM = 14
#: What an answer has of a GPU that does not work, in lower case, and what that means. NVML's texts of its results
#: (nvmlErrorString), and nvidia-smi's own. 255 is the status of every other error, so only the words tell these apart;
#: and a GPU whose handle is refused ends with 9 as well, which alone means the driver.
WORDS: Mapping[str, str] = {
    "couldn't communicate with the nvidia driver": NVIDIA_SMI[9],
    "driver/library version mismatch": NVIDIA_SMI[18],
    "gpu is lost": NVIDIA_SMI[15],
    "gpu requires reset": NVIDIA_SMI[16],
    "has fallen off the bus": NVIDIA_SMI[15],
    "no devices were found": NVIDIA_SMI[6],
    "unable to determine the device handle": "a GPU can't be reached",
}
#: dcgmi ends with the low byte of a result of DCGM, which is negative: -21 is the status 235. Source: DCGM 4.6,
#: dcgmi/main_dcgmi.cpp and dcgmlib/dcgm_structs.h (dcgmReturn_t). -2 is what dcgmi adds for wrong arguments. Here are
#: those with the reason why there is no diagnosis.
DCGMI: Mapping[int, str] = {
    -2: "the arguments of dcgmi are wrong",
    -6: "DCGM does not support the diagnosis with this driver",
    -8: "NVML gave an error",
    -11: "the diagnosis took too long",
    -12: "dcgmi and DCGM's service have different versions",
    -18: "a GPU can't be reached any more",
    -19: "a GPU must be reset",
    -21: "DCGM's service nvidia-dcgm does not answer",
    -22: "DCGM does not support these GPUs",
    -23: "the GPUs are of different models",
    -25: "a library of DCGM is missing",
    -29: "DCGM's service does not run as root",
    -30: "the diagnosis met an error",
    -33: "a module of DCGM is not loaded",
    -34: "the GPUs are in use",
    -39: "another diagnosis runs",
    -41: "DCGM's service can't start the diagnosis",
    -44: "the driver is too old for DCGM",
    -51: "the diagnosis met an error for which the GPU must be taken out of service",
    -52: "the program of the diagnosis (nvvs) is missing",
    -53: "the diagnosis was killed",
    -54: "DCGM is paused",
    -56: "DCGM's service works without NVIDIA's library NVML",
    -57: "the driver did not answer NVML in time",
    -58: "DCGM has no test for these GPUs",
    -66: "the diagnosis was stopped",
    -67: "the GPUs are detached from DCGM",
}
#: The results that mean that a GPU does not work.
DCGMI_BROKEN = frozenset({-18, -19, -51})
#: What the diagnosis prints of GPUs that are divided, which it can't test. Source: DCGM 4.6, nvvs/src/
#: NvidiaValidationSuite.cpp (BuildCommonGpusList): four sentences, each with one of these words.
DCGMI_DIVIDED = ("mig configuration is incompatible", "mig mode enabled", "mig is enabled")
_LONGEST = 200


def refusal(status: int, output: str, errors: str) -> str:
    """What nvidia-smi said of the driver or a GPU; empty where it said no such thing."""
    lines = [" ".join(line.split()) for line in (*output.splitlines(), *errors.splitlines())]
    matches = ((line, meaning) for line in lines for words, meaning in WORDS.items() if words in line.lower())
    message, meaning = next(matches, ("", NVIDIA_SMI.get(status, "")))
    if not meaning:
        return ""
    message = message or next((line for line in lines if line and not line.startswith("<")), "")
    return f"{meaning}; nvidia-smi ended with status {status}: {message[:_LONGEST]}"


def result_of_dcgmi(status: int) -> int:
    """The result of DCGM that an exit status of dcgmi stands for; 0 where it is none of `DCGMI`."""
    return status - 256 if status - 256 in DCGMI else 0


def is_divided(text: str) -> bool:
    """Whether DCGM reports that it does not test GPUs because they are divided (MIG)."""
    return any(words in text.lower() for words in DCGMI_DIVIDED)
