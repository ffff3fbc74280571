fn main() {
    for path in std::env::args().skip(1) {
        let Ok(bytes) = std::fs::read(&path) else { continue };
        let t = std::time::Instant::now();
        match fastpath_rescue::analyse(&bytes) {
            Ok(sites) => for s in &sites {
                match &s.window {
                    Ok(w) => println!("{path} {:#x} {} {:?} proven {:?} {:#x} {:02x?}", s.address, s.calls, s.by, w.kind, w.address, w.bytes),
                    Err(e) => println!("{path} {:#x} {} {:?} REFUSED {e}", s.address, s.calls, s.by),
                }
            },
            Err(e) => println!("{path} ERROR {e}"),
        }
        if t.elapsed().as_secs() > 2 { println!("{path} took {:?} for {} bytes", t.elapsed(), bytes.len()); }
    }
}
