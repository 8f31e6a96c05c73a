// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prints `Documentation/layout.txt`: every shared structure with the offset and size of each
//! field, and the value of every code.

use std::cell::Cell;

fn main() {
    println!(
        "Verbena ABI version {} (oldest spoken: {})",
        verbena_abi::ABI_VERSION,
        verbena_abi::ABI_VERSION_MIN
    );
    let heading = Cell::new("");
    verbena_abi::for_each_layout(
        &mut |name, size, fields| {
            heading.set("");
            println!("\nstruct {name}, {size} bytes");
            for (field, offset, size) in fields {
                println!("  {offset:#07x} {size:>6}  {field}");
            }
        },
        &mut |set, name, value| {
            if heading.replace(set) != set {
                println!("\ncodes {set}");
            }
            println!("  {value:#06x}  {name}");
        },
    );
}
