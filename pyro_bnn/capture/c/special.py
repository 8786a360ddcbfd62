"""Special functions that the library of C lacks, as its text."""

from __future__ import annotations

# Recurrence to x >= 10, reflection below 0, then the asymptotic series: Abramowitz & Stegun,
# "Handbook of Mathematical Functions", 1964, 6.3.5, 6.3.7 and 6.3.18.
DIGAMMA = """\
static double digamma(double x) {
  double rest = 0;
  if (x == 0) return -1 / x;
  if (x < 0) {
    if (floor(x) == x) return __builtin_nan("");
    rest = -3.14159265358979323846 / tan(3.14159265358979323846 * (x - floor(x)));
    x = 1 - x;
  }
  for (; x < 10; x += 1) rest -= 1 / x;
  const double y = 1 / (x * x);
  return rest + log(x) - .5 / x
    - y * (1 / 12. - y * (1 / 120. - y * (1 / 252. - y * (1 / 240. - y * (1 / 132.
    - y * (691 / 32760. - y / 12))))));
}
static float digammaf(float x) { return digamma(x); }"""

# A first value by S. Winitzki, "A handy approximation for the error function and its inverse",
# 2008, then Newton's steps.
ERFINV = """\
static double erfinv(double y) {
  const double size = fabs(y);
  if (!(size < 1)) return size == 1 ? y * __builtin_inf() : __builtin_nan("");
  const double w = log1p(-y * y), a = 4.3307467508 + w / 2;
  double x = sqrt(sqrt(a * a - w / .147) - a);
  for (int n = 0; n < 4; n++) {
    const double error = size < .5 ? size - erf(x) : erfc(x) - (1 - size);
    x += .88622692545275801365 * error * exp(x * x);
  }
  return y < 0 ? -x : x;
}
static float erfinvf(float x) { return erfinv(x); }"""

SPECIAL = {"digamma": DIGAMMA, "erfinv": ERFINV}
