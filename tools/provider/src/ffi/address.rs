// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Address vectors: from the attributes that a program passes to the form of the device.
#![allow(unsafe_code)]

use super::pabi::*;
use verbena_abi::ctx::{AddressVector, AV_GRH};
use verbena_abi::uverbs::CreateAhResp;
use verbena_abi::{Le16, Le32};

/// Returns the address vector for the attributes of an address handle, with the answer of the
/// kernel, which has checked them. A device ignores the fields of the other link layer.
pub fn address_vector(values: &ibv_ah_attr, answer: &CreateAhResp) -> AddressVector {
    let mut vector = AddressVector {
        sl: values.sl,
        port_num: values.port_num,
        static_rate: values.static_rate,
        dmac: answer.dmac,
        dlid: Le16::new(values.dlid),
        path_bits: values.src_path_bits & !AV_GRH,
        pdn: answer.pdn,
        ..AddressVector::default()
    };
    if values.is_global != 0 {
        let grh = &values.grh;
        // SAFETY: every member of the union has the same sixteen bytes.
        vector.dgid = unsafe { grh.dgid.raw };
        vector.sgid_index = Le16::new(grh.sgid_index.into());
        vector.flow_label = Le32::new(grh.flow_label & 0xf_ffff);
        vector.hop_limit = grh.hop_limit;
        vector.traffic_class = grh.traffic_class;
        vector.path_bits |= AV_GRH;
    }
    vector
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(is_global: u8) -> ibv_ah_attr {
        ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: [7; 16] },
                flow_label: 0xfff_0001,
                sgid_index: 3,
                hop_limit: 64,
                traffic_class: 5,
            },
            dlid: 0xc001,
            sl: 2,
            src_path_bits: 0x85,
            static_rate: 6,
            is_global,
            port_num: 1,
        }
    }

    #[test]
    fn an_address_has_a_lid_and_a_grh_only_if_it_is_global() {
        let answer = CreateAhResp {
            pdn: Le32::new(9),
            ..CreateAhResp::default()
        };
        let local = AddressVector {
            dlid: Le16::new(0xc001),
            path_bits: 5,
            sl: 2,
            static_rate: 6,
            port_num: 1,
            pdn: Le32::new(9),
            ..AddressVector::default()
        };
        assert_eq!(address_vector(&attributes(0), &answer), local);
        let global = AddressVector {
            dgid: [7; 16],
            sgid_index: Le16::new(3),
            flow_label: Le32::new(0xf_0001),
            hop_limit: 64,
            traffic_class: 5,
            path_bits: 5 | AV_GRH,
            ..local
        };
        assert_eq!(address_vector(&attributes(1), &answer), global);
    }

    #[test]
    fn an_address_of_roce_has_the_mac_address_that_the_kernel_has_resolved() {
        let answer = CreateAhResp {
            dmac: [1, 2, 3, 4, 5, 6],
            ..CreateAhResp::default()
        };
        let vector = address_vector(&attributes(1), &answer);
        assert_eq!(vector.dmac, [1, 2, 3, 4, 5, 6]);
        assert_eq!(vector.path_bits & AV_GRH, AV_GRH);
    }
}
