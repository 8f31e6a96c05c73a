# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What programs in guests have in common. Programs on the host may use it too."""
