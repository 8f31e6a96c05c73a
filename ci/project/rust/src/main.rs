// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A test in Rust: a queue pair sends a value to itself.

use std::error::Error;

/// Index of the RoCE v2 GID of the device, as `verbena run` names it.
fn gid_index() -> Result<u32, Box<dyn Error>> {
    Ok(std::env::var("VERBENA_GID")?.parse()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let devices = ibverbs::devices()?;
    let context = devices.iter().next().ok_or("there is no RDMA device")?.open()?;
    let cq = context.create_cq(2, 0)?;
    let domain = context.alloc_pd()?;
    let builder = domain
        .create_qp(&cq, &cq, ibverbs::ibv_qp_type::IBV_QPT_RC)
        .set_gid_index(gid_index()?)
        .build()?;
    let own = builder.endpoint();
    let mut qp = builder.handshake(own)?;

    let mut memory = domain.allocate::<u64>(2)?;
    memory[1] = 0x5665_7262;
    // SAFETY: the memory stays registered, and is not touched before both requests have completed.
    unsafe {
        qp.post_receive(&mut memory, ..1, 1)?;
        qp.post_send(&mut memory, 1.., 2)?;
    }
    let mut done = Vec::new();
    let mut completions = [ibverbs::ibv_wc::default(); 2];
    while done.len() < 2 {
        for completion in cq.poll(&mut completions)? {
            if let Some((status, _)) = completion.error() {
                return Err(format!("request {}: {status:?}", completion.wr_id()).into());
            }
            done.push(completion.wr_id());
        }
    }
    if memory[0] != memory[1] {
        return Err(format!("{:#x} arrived instead of {:#x}", memory[0], memory[1]).into());
    }
    println!("ok loopback: {:#x} arrived", memory[0]);
    Ok(())
}
