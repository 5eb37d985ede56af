"""Frames of a detector: a thread puts them into a queue, and they are corrected and stored while they come.

How many there will be is not known. `chunkflow.live` makes a source of the queue. One pass over it stores the
corrected frames in a zarr array that grows, and finds the mean and the brightest value of each pixel. The queue has
room for a few frames, so the detector waits where the computer is slower.

Run it as it is: it makes its own frames, uses a GPU where there is one, and checks the result.
"""

import queue
import tempfile
import threading
from pathlib import Path

import numpy as np

import chunkflow as cf

FRAMES, SHAPE = 300, (128, 128)


def frame(number):
    return np.random.default_rng(number).poisson(50, SHAPE).astype("u2")


def detect(frames):
    """The detector: one frame after the other, and None at the end."""
    try:
        for number in range(FRAMES):
            frames.put(frame(number))
        frames.put(None)
    except Exception as error:  # whoever reads the queue gets it
        frames.put(error)


def main():
    dark = np.full(SHAPE, 3.0, "f4")
    frames = queue.Queue(maxsize=16)
    with tempfile.TemporaryDirectory() as folder:
        detector = threading.Thread(target=detect, args=(frames,))
        detector.start()
        x = cf.open(cf.live(frames, frames=True, batch=64))
        corrected = np.maximum(x - dark, 0)
        places = [Path(folder) / name for name in ("corrected.zarr", "mean.npy", "brightest.npy")]
        stored, mean, brightest = cf.store([corrected, corrected.mean(axis=0), corrected.max(axis=0)], places)
        detector.join()

        expected = np.maximum(np.stack([frame(number) for number in range(FRAMES)]) - dark, 0)
        assert stored.shape == (FRAMES, *SHAPE)
        np.testing.assert_array_equal(stored[-1], expected[-1])
        np.testing.assert_array_equal(brightest, expected.max(axis=0))
        np.testing.assert_allclose(mean, expected.mean(axis=0), rtol=1e-6)
        print(f"{FRAMES} frames stored in chunks of {stored.chunks}; mean {float(mean.mean()):.3f}")
        del stored, mean, brightest  # let the files go before their folder does


if __name__ == "__main__":
    main()
