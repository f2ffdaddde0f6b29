//! Small dense linear algebra in f64, for what happens once per adapter: decompositions of weights and of B·A.

/// Rows of numbers.
#[derive(Debug, Clone)]
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) data: Vec<f64>, // [rows, columns]
}

impl Matrix {
    pub(crate) fn zeros(rows: usize, columns: usize) -> Matrix {
        Matrix { rows, columns, data: vec![0.0; rows * columns] }
    }

    pub(crate) fn from_f32(rows: usize, columns: usize, values: &[f32]) -> Matrix {
        Matrix { rows, columns, data: values.iter().map(|v| f64::from(*v)).collect() }
    }

    pub(crate) fn row(&self, i: usize) -> &[f64] {
        &self.data[i * self.columns..(i + 1) * self.columns]
    }

    pub(crate) fn row_mut(&mut self, i: usize) -> &mut [f64] {
        &mut self.data[i * self.columns..(i + 1) * self.columns]
    }

    pub(crate) fn transposed(&self) -> Matrix {
        let mut out = Matrix::zeros(self.columns, self.rows);
        for i in 0..self.rows {
            for (j, v) in self.row(i).iter().enumerate() {
                out.data[j * self.rows + i] = *v;
            }
        }
        out
    }

    /// self · other
    pub(crate) fn times(&self, other: &Matrix) -> Matrix {
        let mut out = Matrix::zeros(self.rows, other.columns);
        for i in 0..self.rows {
            let to = &mut out.data[i * other.columns..(i + 1) * other.columns];
            for (k, v) in self.row(i).iter().enumerate() {
                add_scaled(to, *v, other.row(k));
            }
        }
        out
    }

    /// The first `count` rows.
    pub(crate) fn first_rows(mut self, count: usize) -> Matrix {
        self.data.truncate(count * self.columns);
        self.rows = self.rows.min(count);
        self
    }

    pub(crate) fn to_f32(&self) -> Vec<f32> {
        self.data.iter().map(|v| *v as f32).collect()
    }
}

/// to += scale · from
pub(crate) fn add_scaled(to: &mut [f64], scale: f64, from: &[f64]) {
    for (t, f) in to.iter_mut().zip(from) {
        *t += scale * f;
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The reflector `1 − tau·v·vᵀ`, `v[0] = 1`, that turns `x` into a multiple of the first unit vector, which is returned with
/// `tau`; `x` becomes `v`. As LAPACK has it: the multiple's sign is opposite to `x[0]`'s, and nothing happens where the rest is 0.
fn reflector(x: &mut [f64]) -> (f64, f64) {
    let rest = dot(&x[1..], &x[1..]);
    let first = x[0];
    x[0] = 1.0;
    if rest == 0.0 {
        return (first, 0.0);
    }
    let norm = (first * first + rest).sqrt();
    let multiple = if first > 0.0 { -norm } else { norm };
    x[1..].iter_mut().for_each(|v| *v /= first - multiple);
    (multiple, (multiple - first) / multiple)
}

/// The first `count` columns of Q, as rows, and the first `count` rows of R, with `M = Q·R` and LAPACK's signs.
pub(crate) fn qr(m: &Matrix, count: usize) -> (Matrix, Matrix) {
    let count = count.min(m.rows).min(m.columns);
    let mut columns = m.transposed(); // a row is a column of M
    let mut reflectors: Vec<(Vec<f64>, f64)> = Vec::new();
    let apply = |v: &[f64], tau: f64, x: &mut [f64]| {
        let share = -tau * dot(v, x);
        add_scaled(x, share, v);
    };
    for k in 0..count {
        let mut v = columns.row(k)[k..].to_vec();
        let (multiple, tau) = reflector(&mut v);
        columns.row_mut(k)[k..].fill(0.0);
        columns.row_mut(k)[k] = multiple;
        for j in k + 1..m.columns {
            apply(&v, tau, &mut columns.row_mut(j)[k..]);
        }
        reflectors.push((v, tau));
    }
    let mut q = Matrix::zeros(count, m.rows);
    for i in 0..count {
        let column = q.row_mut(i);
        column[i] = 1.0;
        for (k, (v, tau)) in reflectors.iter().enumerate().rev() {
            apply(v, *tau, &mut column[k..]);
        }
    }
    (q, columns.transposed().first_rows(count))
}

/// Eigenvalues of a symmetric matrix, falling, and their vectors as rows: reduction to a tridiagonal matrix by reflections, then
/// QR steps with Wilkinson's shift on that (Golub and Van Loan, 8.3).
pub(crate) fn eigen(mut m: Matrix) -> (Vec<f64>, Matrix) {
    let n = m.rows;
    let (mut diagonal, mut beside) = (vec![0.0; n], vec![0.0; n]);
    let mut reflectors: Vec<(Vec<f64>, f64)> = Vec::new();
    for k in 0..n {
        diagonal[k] = m.row(k)[k];
        if k + 1 == n {
            break;
        }
        let mut v = m.row(k)[k + 1..].to_vec();
        let (multiple, tau) = reflector(&mut v);
        beside[k] = multiple;
        // What is left becomes H·M·H = M − v·wᵀ − w·vᵀ with w = p − (tau/2)(p·v)·v, p = tau·M·v.
        let mut w: Vec<f64> = (k + 1..n).map(|i| tau * dot(&m.row(i)[k + 1..], &v)).collect();
        let half = -0.5 * tau * dot(&w, &v);
        add_scaled(&mut w, half, &v);
        for i in k + 1..n {
            let row = &mut m.row_mut(i)[k + 1..];
            add_scaled(row, -v[i - k - 1], &w);
            add_scaled(row, -w[i - k - 1], &v);
        }
        reflectors.push((v, tau));
    }
    // Rows of Z are the vectors so far: Z = … · H₁ · H₀.
    let mut z = Matrix::zeros(n, n);
    (0..n).for_each(|i| z.row_mut(i)[i] = 1.0);
    for (k, (v, tau)) in reflectors.iter().enumerate().rev() {
        for i in k + 1..n {
            let row = &mut z.row_mut(i)[k + 1..];
            let share = -tau * dot(row, v);
            add_scaled(row, share, v);
        }
    }
    tridiagonal_steps(&mut diagonal, &mut beside, &mut z);
    let order = super::order(n, &mut |i, j| diagonal[i] > diagonal[j]);
    let mut vectors = Matrix::zeros(n, n);
    for (to, from) in order.iter().enumerate() {
        vectors.row_mut(to).copy_from_slice(z.row(*from));
    }
    (order.iter().map(|i| diagonal[*i]).collect(), vectors)
}

/// Turns pairs of neighbouring rows until nothing is left beside the diagonal.
fn tridiagonal_steps(diagonal: &mut [f64], beside: &mut [f64], z: &mut Matrix) {
    let mut end = diagonal.len();
    let mut left = 60 * end; // two or three steps each suffice
    // The reduction's own rounding is larger than this share of the largest element.
    let floor = 1e-18 * diagonal.iter().chain(&*beside).fold(0.0, |most: f64, v| most.max(v.abs()));
    while end > 1 && left > 0 {
        let small = |i: usize| beside[i].abs() <= f64::EPSILON * (diagonal[i].abs() + diagonal[i + 1].abs()) + floor;
        if small(end - 2) {
            end -= 1;
            continue;
        }
        left -= 1;
        let start = (0..end - 2).rev().find(|i| small(*i)).map_or(0, |i| i + 1);
        // The eigenvalue of the last 2×2 block that is nearer to its last element.
        let (a, b, c) = (diagonal[end - 2], beside[end - 2], diagonal[end - 1]);
        let half = (a - c) / 2.0;
        let root = (half * half + b * b).sqrt();
        let shift = c - b * b / (half + if half < 0.0 { -root } else { root });
        let (mut x, mut bulge) = (diagonal[start] - shift, beside[start]);
        for k in start..end - 1 {
            let length = (x * x + bulge * bulge).sqrt();
            let (cos, sin) = if length == 0.0 { (1.0, 0.0) } else { (x / length, bulge / length) };
            if k > start {
                beside[k - 1] = length;
            }
            let (p, q, r) = (diagonal[k], beside[k], diagonal[k + 1]);
            diagonal[k] = cos * cos * p + 2.0 * cos * sin * q + sin * sin * r;
            diagonal[k + 1] = sin * sin * p - 2.0 * cos * sin * q + cos * cos * r;
            beside[k] = cos * sin * (r - p) + (cos * cos - sin * sin) * q;
            if k + 2 < end {
                x = beside[k];
                bulge = sin * beside[k + 1];
                beside[k + 1] *= cos;
            }
            let n = z.columns;
            let (one, other) = z.data[k * n..(k + 2) * n].split_at_mut(n);
            for (one, other) in one.iter_mut().zip(other) {
                (*one, *other) = (cos * *one + sin * *other, cos * *other - sin * *one);
            }
        }
    }
}

/// The largest `count` singular values of M, falling, with `u` and `v` as rows: M ≈ Σ σₖ·uₖ·vₖᵀ. Vectors of a σ of 0 are 0 on one
/// side. By the eigenvalues of the smaller of MᵀM and MMᵀ, which is exact enough for the largest: σₖ to about 10⁻¹⁶·σ₁²/σₖ.
pub(crate) fn svd(m: &Matrix, count: usize) -> (Vec<f64>, Matrix, Matrix) {
    let t = m.transposed();
    let wide = m.rows < m.columns;
    let (short, long) = if wide { (m, &t) } else { (&t, m) }; // [k, n] and [n, k]
    let (squares, vectors) = eigen(short.times(long));
    let one = vectors.first_rows(count);
    let mut other = one.times(short); // σ times the other side's vectors
    let mut values = Vec::new();
    for i in 0..one.rows {
        let norm = dot(other.row(i), other.row(i)).sqrt();
        let sigma = if norm > 1e-14 * squares[0].max(0.0).sqrt() { norm } else { 0.0 };
        other.row_mut(i).iter_mut().for_each(|v| *v = if sigma == 0.0 { 0.0 } else { *v / sigma });
        values.push(sigma);
    }
    if wide { (values, one, other) } else { (values, other, one) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(rows: usize, columns: usize, mut state: u64) -> Matrix {
        let mut out = Matrix::zeros(rows, columns);
        for v in &mut out.data {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *v = (state >> 33) as f64 / (1u64 << 31) as f64 - 0.5;
        }
        out
    }

    fn distance(a: &Matrix, b: &Matrix) -> f64 {
        assert_eq!((a.rows, a.columns), (b.rows, b.columns));
        a.data.iter().zip(&b.data).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    }

    fn identity(n: usize) -> Matrix {
        let mut out = Matrix::zeros(n, n);
        (0..n).for_each(|i| out.row_mut(i)[i] = 1.0);
        out
    }

    #[test]
    fn decompositions_multiply_back_and_are_orthonormal() {
        for (rows, columns) in [(1, 1), (1, 5), (5, 1), (7, 7), (13, 4), (4, 13), (40, 33)] {
            let m = random(rows, columns, (rows * 100 + columns) as u64);
            let k = rows.min(columns);
            let (q, r) = qr(&m, k);
            assert!(distance(&q.transposed().times(&r), &m) < 1e-13);
            assert!(distance(&q.times(&q.transposed()), &identity(k)) < 1e-13);
            let (s, u, v) = svd(&m, k);
            assert!(s.windows(2).all(|pair| pair[0] >= pair[1]));
            let mut scaled = u.clone();
            (0..k).for_each(|i| scaled.row_mut(i).iter_mut().for_each(|x| *x *= s[i]));
            assert!(distance(&scaled.transposed().times(&v), &m) < 1e-12, "{rows}×{columns}");
            assert!(distance(&v.times(&v.transposed()), &identity(k)) < 1e-7);
            assert!(distance(&u.times(&u.transposed()), &identity(k)) < 1e-7);
        }
    }

    #[test]
    fn equal_eigenvalues_zeros_and_nan_end() {
        for n in [1, 2, 5] {
            let (values, vectors) = eigen(identity(n));
            assert_eq!(values, vec![1.0; n]);
            assert!(distance(&vectors.times(&vectors.transposed()), &identity(n)) < 1e-14);
            assert_eq!(eigen(Matrix::zeros(n, n)).0, vec![0.0; n]);
            let mut broken = identity(n);
            broken.data[0] = f64::NAN;
            eigen(broken);
        }
        // Rank 2 of 6: the other singular values are 0, their vectors too.
        let low = random(6, 2, 1).times(&random(2, 6, 2));
        let (s, u, v) = svd(&low, 4);
        assert!(s[1] > 1e-3 && s[2] < 1e-7 && s[3] < 1e-7, "{s:?}");
        let mut scaled = u;
        (0..4).for_each(|i| scaled.row_mut(i).iter_mut().for_each(|x| *x *= s[i]));
        assert!(distance(&scaled.transposed().times(&v), &low) < 1e-12);
    }
}
