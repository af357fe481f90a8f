use paring::data::synthetic::{Split, draw};
fn main() {
    let mut im = image::RgbImage::new(10 * 66, 8 * 66);
    for r in 0..8u64 {
        for c in 0..10u64 {
            let mut px = vec![0u8; 3072];
            draw(Split::Train, r * 10 + c, &mut px);
            for y in 0..64usize {
                for x in 0..64usize {
                    let i = (y / 2) * 32 + x / 2;
                    im.put_pixel(
                        (c as usize * 66 + x) as u32,
                        (r as usize * 66 + y) as u32,
                        image::Rgb([px[i], px[1024 + i], px[2048 + i]]),
                    );
                }
            }
        }
    }
    im.save("/tmp/sheet.png").unwrap();
    let t = std::time::Instant::now();
    let d = paring::data::open("synthetic:eval", 0).unwrap();
    println!("{} in {:?}", d.len(), t.elapsed());
}
