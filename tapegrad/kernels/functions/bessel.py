"""Modified Bessel functions of orders 0 and 1 for float64, written under the rules of ``vmath``."""

import math

import numpy as np

from tapegrad.kernels.functions.vmath import _with_sign, exp


def _i0_small(t):
    """e**-a I0(a) for t = a/4 - 1 on [-1, 1], that is a in [0, 8]."""
    w = t * t
    even = 2.6265363151970112e-08 + w * 4.470516727511741e-09
    odd = -7.723094556846333e-09 + w * -1.1852342482684723e-09
    even = 3.675842926555429e-07 + w * even
    odd = -1.1384114641747256e-07 + w * odd
    even = 3.2293390826404927e-06 + w * even
    odd = -1.0883393970072518e-06 + w * odd
    even = 2.520232727107692e-05 + w * even
    odd = -9.251680584432654e-06 + w * odd
    even = 0.00016240542162878106 + w * even
    odd = -6.550861389620851e-05 + w * odd
    even = 0.0008563152748272306 + w * even
    odd = -0.00038290209550065975 + w * odd
    even = 0.003617126448897043 + w * even
    odd = -0.001811886793937724 + w * odd
    even = 0.011960077907026221 + w * even
    odd = -0.0067923998730731695 + w * odd
    even = 0.030177912022978357 + w * even
    odd = -0.01968265469059234 + w * odd
    even = 0.05677703201991695 + w * even
    odd = -0.04298594945479612 + w * odd
    even = 0.07927522590716347 + w * even
    odd = -0.06954119561719381 + w * odd
    even = 0.08734341617552313 + w * even
    odd = -0.08496338091616305 + w * odd
    even = 0.09451562853995103 + w * even
    odd = -0.08904344136075962 + w * odd
    even = 0.2070019212239867 + w * even
    odd = -0.11300432688620549 + w * odd
    return even + t * odd


def _i0_large(t):
    """e**-a sqrt(a) I0(a) for t = 16/a - 1 on (-1, 1], that is a >= 8."""
    w = t * t
    even = -3.210161204221311e-10 + w * 4.005227764863093e-11
    odd = -1.2429481430536811e-10 + w * 1.6645473602872717e-11
    even = 1.2061857017231527e-09 + w * even
    even = -2.871865993820918e-09 + w * even
    odd = 4.388861044991905e-10 + w * odd
    even = 4.9905012775902334e-09 + w * even
    odd = -1.0267340552488217e-09 + w * odd
    even = -6.93899627720982e-09 + w * even
    odd = 1.983359036878627e-09 + w * odd
    even = 7.92317806979789e-09 + w * even
    odd = -3.82099512308995e-09 + w * odd
    even = -5.573331421610012e-09 + w * even
    odd = 7.697662019062485e-09 + w * odd
    even = -6.709029656225637e-09 + w * even
    odd = -1.3453822931523271e-08 + w * odd
    even = 2.1542697342456025e-08 + w * even
    odd = 7.56377201554603e-09 + w * odd
    even = 8.87226944343699e-08 + w * even
    odd = 3.9324708328742363e-08 + w * odd
    even = 1.4838475432345007e-06 + w * even
    odd = 2.9735993830791437e-07 + w * odd
    even = 0.00013621607439233397 + w * even
    odd = 1.1143033788352455e-05 + w * odd
    even = 0.4021765094450081 + w * even
    odd = 0.0033605519836678865 + w * odd
    return even + t * odd


def _i1_small(t):
    """e**-a I1(a) / a for t = a/4 - 1 on [-1, 1]."""
    w = t * t
    even = 2.603206542331157e-09 + w * 3.7284532079392345e-10
    odd = -8.984420960424589e-09 + w * -1.41695079121077e-09
    even = 3.802984785138283e-08 + w * even
    even = 3.759367306404118e-07 + w * even
    odd = -1.2424759932738304e-07 + w * odd
    even = 3.293899139003749e-06 + w * even
    odd = -1.1327072698408053e-06 + w * odd
    even = 2.4233753149624307e-05 + w * even
    odd = -9.136543922789093e-06 + w * odd
    even = 0.0001484212433475852 + w * even
    odd = -6.142360299099794e-05 + w * odd
    even = 0.0007445123445061157 + w * even
    odd = -0.0003411760289073331 + w * odd
    even = 0.0030057624197775295 + w * even
    odd = -0.00153887456203039 + w * odd
    even = 0.009583962150731578 + w * even
    odd = -0.005534567847563678 + w * odd
    even = 0.023686016957729535 + w * even
    odd = -0.015571309243980052 + w * odd
    even = 0.04467457262125467 + w * even
    odd = -0.03367135552108536 + w * odd
    even = 0.06376740371340721 + w * even
    odd = -0.055280039226991644 + w * odd
    even = 0.0680575999095116 + w * even
    odd = -0.06848260620582691 + w * odd
    even = 0.044687709875608835 + w * even
    odd = -0.061124338029666284 + w * odd
    return even + t * odd


def _i1_large(t):
    """e**-a sqrt(a) I1(a) for t = 16/a - 1 on (-1, 1]."""
    w = t * t
    even = 3.339867355634982e-10 + w * -4.1681089783384256e-11
    odd = 1.161813630287145e-10 + w * -1.5626599071977848e-11
    even = -1.2547972491973786e-09 + w * even
    even = 2.9887350377570034e-09 + w * even
    odd = -4.086984233473255e-10 + w * odd
    even = -5.2022217601823894e-09 + w * even
    odd = 9.568523624905203e-10 + w * odd
    even = 7.268242563538968e-09 + w * even
    odd = -1.8736450470066097e-09 + w * odd
    even = -8.401102179738338e-09 + w * even
    odd = 3.7219797447255018e-09 + w * odd
    even = 6.14985231157688e-09 + w * even
    odd = -7.778592763970399e-09 + w * odd
    even = 6.694265612407784e-09 + w * even
    odd = 1.4076395500755014e-08 + w * odd
    even = -2.3368016560658254e-08 + w * even
    odd = -8.436290430234562e-09 + w * odd
    even = -1.0001340021780371e-07 + w * even
    odd = -4.312811174972107e-08 + w * odd
    even = -1.8349101091858603e-06 + w * even
    odd = -3.4838565069237384e-07 + w * odd
    even = -0.00021923576383430914 + w * even
    odd = -1.503854719814553e-05 + w * odd
    even = 0.38939845902587233 + w * even
    odd = -0.00974957719323576 + w * odd
    return even + t * odd


def i0e(x):
    """e**-abs(x) I0(x). At most 9 ulp, next to 8."""
    a = abs(x)
    if a < 8.0:
        return _i0_small(0.25 * a - 1.0)
    return _i0_large(16.0 / a - 1.0) / math.sqrt(a)


def i1e_ratio(x):
    """e**-abs(x) I1(x) / x. At most 30 ulp, next to 8."""
    a = abs(x)
    if a < 8.0:
        return _i1_small(0.25 * a - 1.0)
    return _i1_large(16.0 / a - 1.0) / math.sqrt(a) / a


def i1e(x):
    """e**-abs(x) I1(x). At most 30 ulp, next to 8."""
    a = abs(x)
    if a < 8.0:
        return x * _i1_small(0.25 * a - 1.0)
    return _with_sign(_i1_large(16.0 / a - 1.0) / math.sqrt(a), x)


def ie_ratio(n, x):
    """e**-abs(x) In(x) / x**n for integers n from 0 to 25. At most 1e-13 relative, up to n = 4.

    From orders 0 and 1 by recurrence where x is large (DLMF 10.29.1), else by the power series
    (DLMF 10.25.2), whose terms are positive.
    """
    if not 0.0 <= n <= 25.0:
        return np.nan
    a = abs(x)
    if n < 2.0:
        return i0e(x) if n == 0.0 else i1e_ratio(x)
    k = 0.0
    if a < (30.0 if n < 5.5 else n * n):
        term = 1.0
        while k < n:
            k += 1.0
            term *= 0.5 / k
        y = term
        k = 0.0
        while term > 1e-17 * y:
            k += 1.0
            term *= 0.25 * a * a / (k * (k + n))
            y += term
        return y * exp(-a)
    before = i0e(x)
    y = i1e_ratio(x)
    k = 1.0
    while k < n:
        # of ratios, in which each order divides by x once more
        after = (before - 2.0 * k * y) / a / a
        before = y
        y = after
        k += 1.0
    return y


def i0(x):
    """I0(x); e**abs(x) overflows earlier."""
    half = exp(0.5 * abs(x))
    return half * i0e(x) * half


def i1(x):
    """I1(x)."""
    half = exp(0.5 * abs(x))
    return half * i1e(x) * half
