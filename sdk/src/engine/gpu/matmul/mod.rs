//! Matrix products: which kernel computes one, and how it is cut into dispatches.

use super::kernels::{self, Kernel};
use super::program::{Builder, Dispatch, Slice};

/// How the operands of a product lie. All matrices are row-major; a row is a multiple of 4 values long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `C = A Bᵀ`: A `[m, k]`, B `[n, k]`. Between k and the next multiple of 4 both hold zeros.
    Nt,
    /// `C = A B`: A `[m, k]`, B `[k, n]`. Between k and the next multiple of 4, A holds zeros.
    Nn,
    /// `C = Aᵀ B`: A `[k, m]`, B `[k, n]`.
    Tn,
}

/// What becomes of C.
#[derive(Clone, Debug)]
pub enum Store {
    /// The product.
    Set,
    /// C and the product.
    Add,
    /// This and the product; rows as C's, in another buffer.
    Plus(Slice),
}

/// One product: C `[m, n]` of two matrices whose sides n or m and k are, any of them from 1 on.
#[derive(Clone, Debug)]
pub struct Product {
    /// How A and B lie.
    pub form: Form,
    /// Rows of C.
    pub m: u32,
    /// Columns of C; those up to the next multiple of 4 are overwritten with anything.
    pub n: u32,
    /// Terms of each sum.
    pub k: u32,
    /// Left operand.
    pub a: Slice,
    /// From a row of A to the next, in floats; a multiple of 4, as the other two.
    pub a_stride: u32,
    /// Right operand.
    pub b: Slice,
    /// From a row of B to the next, in floats.
    pub b_stride: u32,
    /// The result.
    pub c: Slice,
    /// From a row of C to the next, in floats.
    pub c_stride: u32,
    /// What C takes.
    pub store: Store,
}

/// A kernel with its constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// 4 × 4 values of C in the registers of an invocation.
    Register4,
    /// 8 × 8.
    Register8,
    /// 8 × 16.
    Register8x16,
}

/// Invocations in each of the two dimensions of a workgroup.
const WORKGROUP: u32 = 8;

/// A dispatch of more floating-point operations is cut, so that a weak device answers its user in between.
const COST_MAX: u64 = 4_000_000_000;

impl Variant {
    /// Blocks of 4 × 4 of an invocation, down and across.
    fn blocks(self) -> [u32; 2] {
        match self {
            Self::Register4 => [1, 1],
            Self::Register8 => [2, 2],
            Self::Register8x16 => [2, 4],
        }
    }

    /// Rows and columns of C of a workgroup.
    fn tile(self) -> [u32; 2] {
        self.blocks().map(|count| count * 4 * WORKGROUP)
    }

    fn kernel(self) -> &'static Kernel {
        &kernels::MATMUL_REGISTER
    }
}

/// Which variant computes the products of each form.
#[derive(Clone, Debug)]
pub struct Matmul {
    nt: Variant,
    nn: Variant,
    tn: Variant,
}

impl Matmul {
    /// `variant` for all products.
    pub fn fixed(variant: Variant) -> Self {
        Self { nt: variant, nn: variant, tn: variant }
    }

    fn variant(&self, form: Form) -> Variant {
        match form {
            Form::Nt => self.nt,
            Form::Nn => self.nn,
            Form::Tn => self.tn,
        }
    }

    /// Adds what computes `product`: one dispatch, or several of some rows each.
    pub fn add(&self, builder: &mut Builder, product: Product) {
        let Product { form, m, n, k, a, a_stride, b, b_stride, c, c_stride, store } = product;
        debug_assert!([a_stride, b_stride, c_stride].iter().all(|stride| stride % 4 == 0), "strides");
        let variant = self.variant(form);
        let [down, across] = variant.blocks();
        let [tile_rows, tile_columns] = variant.tile();
        let (store, residual) = match store {
            Store::Set => (0, a.clone()),
            Store::Add => (1, a.clone()),
            Store::Plus(residual) => (2, residual),
        };
        let row_cost = 2 * u64::from(n) * u64::from(k);
        let tiles = COST_MAX / (row_cost * u64::from(tile_rows)).max(1);
        let rows_max = tiles.clamp(1, u64::from(m.div_ceil(tile_rows)).max(1)) as u32 * tile_rows;
        for row in (0..m).step_by(rows_max as usize) {
            let rows = rows_max.min(m - row);
            builder.add(Dispatch {
                kernel: variant.kernel(),
                constants: vec![
                    ("FORM", form as u32),
                    ("STORE", store),
                    ("DOWN", down),
                    ("ACROSS", across),
                    ("WG", WORKGROUP),
                ],
                params: vec![m, n, k, a_stride / 4, b_stride / 4, c_stride / 4, row, k.next_multiple_of(4)],
                storage: vec![a.clone(), b.clone(), residual.clone(), c.clone()],
                groups: [n.div_ceil(tile_columns), rows.div_ceil(tile_rows), 1],
                cost: row_cost * u64::from(rows),
            });
        }
    }
}
