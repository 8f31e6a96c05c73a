// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory windows: refused binds, refused changes of regions, and refused creations of windows.

use super::*;

#[test]
fn a_refused_bind_changes_nothing() {
    use Syndrome::*;
    for kind in [mr_flags::WINDOW_1, mr_flags::WINDOW_2] {
        let mut rig = with(kind);
        let at = rig.at;
        let d = &mut rig.p.d;
        window(d, 0x61_00, PD + 1, kind);
        region(
            d,
            0x51_00,
            PD + 1,
            access::LOCAL_WRITE | access::MW_BIND,
            at,
        );
        region(d, 0x52_00, PD, access::LOCAL_WRITE, at);
        region(d, 0x53_00, PD, access::MW_BIND, at);
        let zero = access::LOCAL_WRITE | access::MW_BIND | access::ZERO_BASED;
        region(d, 0x54_00, PD, zero, at);
        d.must(&CreateMr {
            key: 0x55_00.into(),
            pdn: PD.into(),
            flags: mr_flags::FAST_REG.into(),
            ..Default::default()
        });
        let bind = rig.bind();
        let cases: &[(Bind, Syndrome)] = &[
            (
                Bind {
                    key: 0x61_00,
                    ..bind
                },
                BindWindow,
            ),
            (
                Bind {
                    key: 0x62_00,
                    ..bind
                },
                BindWindow,
            ),
            (
                Bind {
                    key: REGION,
                    ..bind
                },
                BindWindow,
            ),
            (
                Bind {
                    key: 0x55_00,
                    ..bind
                },
                BindWindow,
            ),
            (
                Bind {
                    region: REGION + 1,
                    ..bind
                },
                BindRegion,
            ),
            (
                Bind {
                    region: 0x51_00,
                    ..bind
                },
                BindRegion,
            ),
            (
                Bind {
                    region: 0x52_00,
                    ..bind
                },
                BindRegion,
            ),
            (
                Bind {
                    region: 0x54_00,
                    ..bind
                },
                BindRegion,
            ),
            (
                Bind {
                    region: 0x55_00,
                    ..bind
                },
                BindRegion,
            ),
            (
                Bind {
                    region: 0x60_01,
                    ..bind
                },
                BindRegion,
            ),
            (
                Bind {
                    region: 0x53_00,
                    ..bind
                },
                BindAccess,
            ),
            (
                Bind {
                    region: 0x53_00,
                    access: access::REMOTE_ATOMIC,
                    ..bind
                },
                BindAccess,
            ),
            (
                Bind {
                    access: REMOTE | access::MW_BIND,
                    ..bind
                },
                BindAccess,
            ),
            (
                Bind {
                    access: REMOTE | 1 << 9,
                    ..bind
                },
                BindAccess,
            ),
            (
                Bind {
                    addr: at - 1,
                    ..bind
                },
                BindBounds,
            ),
            (
                Bind {
                    addr: at + LENGTH - 49,
                    ..bind
                },
                BindBounds,
            ),
            (
                Bind {
                    addr: at + LENGTH + 1,
                    length: 1,
                    ..bind
                },
                BindBounds,
            ),
            (
                Bind {
                    length: u64::MAX,
                    ..bind
                },
                BindBounds,
            ),
            (
                Bind {
                    addr: u64::MAX,
                    length: 2,
                    ..bind
                },
                BindBounds,
            ),
        ];
        for (n, &(wanted, cause)) in cases.iter().enumerate() {
            assert_eq!(rig.bound(wanted), Err(cause), "{n} of {kind}");
            let told = rig.entry(0x60_01);
            assert_eq!(
                (told.key.get(), told.state),
                (0x60_01, MrState::Free.to_raw())
            );
            assert_eq!(rig.entry(REGION).windows.get(), 0);
        }
        let own = if kind == mr_flags::WINDOW_1 {
            (
                Bind {
                    access: REMOTE | access::ZERO_BASED,
                    ..bind
                },
                BindAccess,
            )
        } else {
            (Bind { length: 0, ..bind }, BindBounds)
        };
        assert_eq!(rig.bound(own.0), Err(own.1));
        // A window for READs alone needs no local write access to the region. It covers the whole
        // region.
        let read = access::REMOTE_READ | access::LOCAL_WRITE;
        rig.bound(Bind {
            region: 0x53_00,
            access: read,
            addr: at,
            length: LENGTH,
            ..bind
        })
        .unwrap();
        assert_eq!(rig.entry(0x60_02).access.get(), access::REMOTE_READ);
    }
}

#[test]
fn a_region_with_bound_windows_is_busy() {
    for kind in [mr_flags::WINDOW_1, mr_flags::WINDOW_2] {
        let mut rig = with(kind);
        let bind = rig.bind();
        rig.bound(bind).unwrap();
        let gone = DestroyMr {
            id: REGION.into(),
            ..Default::default()
        };
        let changed = ModifyMr {
            key: REGION.into(),
            pdn: PD.into(),
            access: access::LOCAL_WRITE.into(),
            iova: rig.at.into(),
            length: LENGTH.into(),
            pages: crate::mock::flat(rig.at),
            ..Default::default()
        };
        let busy = |e: crate::error::CmdError| (e.status, e.syndrome);
        let in_use = (CmdStatus::Busy, Syndrome::CmdBusy);
        assert_eq!(rig.p.d.cmd(&gone).map_err(busy), Err(in_use));
        assert_eq!(rig.p.d.cmd(&changed).map_err(busy), Err(in_use));
        rig.used(WqeOpcode::RdmaWrite, bind.addr, 0x60_02).unwrap();
        // A window can be destroyed while it is bound.
        rig.p.d.must(&DestroyMr {
            id: 0x60_02.into(),
            ..Default::default()
        });
        assert_eq!(rig.entry(REGION).windows.get(), 0);
        assert_eq!(
            rig.used(WqeOpcode::RdmaWrite, bind.addr, 0x60_02),
            Err(Syndrome::RkeyUnknown)
        );
        rig.p.d.must(&changed);
        rig.p.d.must(&gone);
    }
}

#[test]
fn a_window_is_created_with_a_type_and_no_other_attributes() {
    let mut rig = Rig::new();
    let good = CreateMr {
        key: 0x60_00.into(),
        pdn: PD.into(),
        flags: mr_flags::WINDOW_1.into(),
        ..Default::default()
    };
    let bad = [
        CreateMr {
            flags: mr_flags::WINDOW.into(),
            ..good
        },
        CreateMr {
            flags: (mr_flags::WINDOW_2 | mr_flags::FAST_REG).into(),
            ..good
        },
        CreateMr {
            flags: (mr_flags::WINDOW_1 | mr_flags::PRIVILEGED).into(),
            ..good
        },
        CreateMr {
            access: access::REMOTE_READ.into(),
            ..good
        },
        CreateMr {
            length: 1.into(),
            ..good
        },
        CreateMr {
            iova: 1.into(),
            ..good
        },
    ];
    for request in bad {
        let refused = rig.p.d.cmd(&request).unwrap_err();
        let attribute = (CmdStatus::Invalid, Syndrome::CmdAttribute);
        assert_eq!((refused.status, refused.syndrome), attribute);
    }
    rig.p.d.must(&good);
    // MODIFY_MR can neither change a window nor turn a region into a window.
    for (key, flags) in [
        (0x60_00, 0),
        (0x60_00, mr_flags::WINDOW_1),
        (REGION, mr_flags::WINDOW_1),
    ] {
        let refused = rig.p.d.cmd(&ModifyMr {
            key: key.into(),
            pdn: PD.into(),
            flags: flags.into(),
            ..Default::default()
        });
        let refused = refused.unwrap_err();
        assert_eq!(
            refused.syndrome,
            Syndrome::CmdAttribute,
            "{key:#x}, {flags}"
        );
    }
}
