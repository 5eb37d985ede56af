"""Steps of a running simulation: their spectra, energies and mean, and no step is stored.

A generator makes one step after the other. `chunkflow.live` makes a source of it, which is asked for the next steps
only when the ones before are computed: so as many are in memory as a batch has, however many steps there are.

Run it as it is: it makes its own data, uses a GPU where there is one, and checks the result.
"""

import numpy as np

import chunkflow as cf

STEPS, SIDE = 200, 96


def heat():
    """Heat that flows on a torus, from a hot square in the middle."""
    u = np.zeros((SIDE, SIDE))
    u[SIDE // 3 : 2 * SIDE // 3, SIDE // 3 : 2 * SIDE // 3] = 1.0
    for _ in range(STEPS):
        yield u
        u = u + 0.2 * (np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1) - 4 * u)


def main():
    steps = cf.open(cf.live(heat(), frames=True, length=STEPS, batch=32))
    total, energy, mean = cf.compute(steps.sum(axis=(1, 2)), (steps**2).sum(axis=(1, 2)), steps.mean(axis=0))
    assert total.shape == energy.shape == (STEPS,)
    np.testing.assert_allclose(total, total[0], rtol=1e-12)  # no heat is lost
    assert (np.diff(energy) < 0).all()  # and it spreads

    everything = np.stack(list(heat()))
    np.testing.assert_allclose(energy, (everything**2).sum(axis=(1, 2)), rtol=1e-12)
    np.testing.assert_allclose(mean, everything.mean(axis=0), rtol=1e-12)
    print(f"{STEPS} steps: energy falls from {energy[0]:.1f} to {energy[-1]:.1f}")


if __name__ == "__main__":
    main()
