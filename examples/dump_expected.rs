use fsdpsim::{
    calibrate::expected_items,
    schedule,
    spec::{Fsdp, Spec},
};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let f = match a[2].as_str() {
        "v1" => Fsdp::V1,
        "v2" => Fsdp::V2,
        _ => Fsdp::Ddp,
    };
    let sets: Vec<&str> = a[3..].iter().map(|s| s.as_str()).collect();
    let s = Spec::load(&a[1], &sets, Some(f)).unwrap();
    let p = schedule::build(&s, f).unwrap();
    for i in expected_items(&p) {
        let w = i
            .work
            .map(|w| p.host_works[w.index()].class.clone())
            .unwrap_or_default();
        println!("{}\tL{}\t{:?}\t{}", i.name, i.launches, i.phase, w);
    }
}
