"""Reference and answer pairs with the reward that is right, by the kind of fault that graders make on them."""

PAIRS = {
    "identity": [
        (r"\frac{5}{11}", r"\frac{5}{11}", 1), (r"(3,8]", r"(3,8]", 1), (r"\{2,7\}", r"\{2,7\}", 1),
        (r"x^2-4x+9", r"x^2-4x+9", 1), (r"15\text{ cm}^2", r"15\text{ cm}^2", 1), (r"2201_3", r"2201_3", 1),
        (r"\text{even}", r"\text{even}", 1), (r"45^\circ", r"45^\circ", 1), (r"3\sqrt{7}-2", r"3\sqrt{7}-2", 1),
        (r"7,-3", r"7,-3", 1), (r"\pm 9", r"\pm 9", 1),
        (r"\begin{pmatrix}2\\-3\\4\end{pmatrix}", r"\begin{pmatrix}2\\-3\\4\end{pmatrix}", 1),
    ],
    "LaTeX spellings": [
        (r"\left(\tfrac{3}{7},-5\right)", r"(\frac{3}{7},-5)", 1), (r"(6,\infty)", r"(6,\infty)", 1),
        (r"\left(3,\tfrac{\pi}{4}\right)", r"(3,\frac{\pi}{4})", 1), (r"\frac12", r"\dfrac{1}{2}", 1),
        (r"\frac9{19}", r"\frac{9}{19}", 1), (r"6x - 7", r"6x-7.", 1), (r"7", r"\textbf{7}", 1),
        (r"(3,4)", r"\boldsymbol{(3,4)}", 1), (r"\frac{\pi}{2}", r"{\pi \over 2}", 1), (r"2\sqrt3", r"2 \sqrt {3}", 1),
        (r"\lceil n / 2\rceil+1", r"\left\lceil \frac{n}{2} \right\rceil + 1", 1), (r"{17}.", r"17", 1),
    ],
    "Unicode": [
        ("-3", "−3", 1), (r"\frac{1}{2}", "½", 1), (r"2\frac{1}{2}", "2½", 1), (r"2\pi", "2π", 1), (r"\sqrt{13}", "√13", 1),
        (r"x^2+1", "x²+1", 1), (r"\infty", "∞", 1), (r"-\infty", "∞", 0), (r"6.72\times10^{-5}", "6.72×10⁻⁵", 1),
        ("1011_2", "1011₂", 1), (r"x \ge 4", "x ≥ 4", 1), ("12", "１２", 1),
    ],
    "percent": [
        (r"45\%", "0.45", 1), (r"45\%", "45", 1), ("7", "700", 0), ("0.6", "60", 0), (r"45\%", "4500\\%", 0),
        (r"45\%", "0.45\\%", 0), ("0.45", "45\\%", 1), ("45", "45\\%", 1), ("0.6", "0.6\\%", 0), ("60", "0.6", 0),
        (r"12.5\%", r"\frac{1}{8}", 1), ("8 percent", r"8\%", 1), (r"8\%", "8 percentage points", 0),
    ],
    "numbers": [
        ("0.5", r"\frac{1}{2}", 1), ("1/3", "0.3333333333", 0), ("1/3", r"0.\overline{3}", 1), (r"\frac{1}{6}", r"0.1\overline{6}", 1),
        ("0.0000000001", "0.0000000002", 0), ("10^{-30}", "0", 0), ("1000000", "10^6", 1), ("2500", "2.5e3", 1),
        ("2.5 \\times 10^{3}", "2500", 1), ("0.001", "10^{-3}", 1), ("5", "-5", 0), ("7", "7.0", 1), ("7", "07", 1),
        (r"-\frac{1}{2}", r"\frac{-1}{2}", 1), (r"\frac{7}{0}", r"\frac{8}{0}", 0), ("12", "1 2", 0), ("1.5", "1,5", 0),
        ("7", "seven", 1), ("100!/2^{50}", r"\frac{100!}{2^{50}}", 1), ("2^{4950}", "2^{4950}+1", 0), ("7^{100}", "7^{101}", 0),
    ],
    "thousands": [
        ("1234", "1,234", 1), (r"10,\!080", "10080", 1), (r"24{,}000", "24000", 1), (r"11,\! 111,\! 100", "11111100", 1),
        ("58,500", r"58\,500", 1), ("10,000", "10,0", 0), ("(1,234)", "1234", 0), (r"\{1,234\}", "1234", 0), ("12,34", "1234", 0),
        ("1,000, 2,000", "1000, 2000", 1), ("125,300", "300, 125", 1), ("1,23", "1.23", 0), ("3, 5, 7", "357", 0),
    ],
    "mixed numbers": [
        (r"2\frac{3}{4}", "2.75", 1), (r"2\frac{3}{4}", "1.5", 0), (r"\frac{11}{4}", "2 3/4", 1), (r"\frac{11}{4}", r"2\frac34", 1),
        (r"-2\frac{3}{4}", "-2.75", 1), ("1 1/2", "11/2", 0), ("3 1/4", "31/4", 0), (r"2\frac{1}{3}", r"\frac{2}{3}", 0),
        (r"2\frac{3}{4}", r"\frac{3}{2}", 0), (r"2\frac{x}{4}", r"\frac{x}{2}", 1),
    ],
    "units": [
        (r"12\text{ cm}^2", "12", 1), (r"12\text{ cm}^2", "12 square centimeters", 1), (r"12\text{ cm}^2", r"12\text{ cm}", 0),
        (r"5\text{ cm}", r"5\text{ inches}", 0), (r"5\text{ cm}", r"50\text{ mm}", 0), (r"5\text{ m}", "5", 1), ("5", r"5\text{ apples}", 1),
        (r"60\text{ km/h}", "60 kilometers per hour", 1), (r"8\pi\text{ cm}^3", r"8\pi", 1), (r"2\sqrt3\text{ units}", r"\sqrt{12}", 1),
        ("5", "5 million", 0), ("5", "5 dozen", 0), ("5", "5!", 0), ("5", "5x", 0), ("24ab", "24", 0), ("5", "5 or 6", 0),
        (r"90^\circ", "90", 1), (r"90^\circ", "90 degrees", 1), (r"90^\circ", "90 radians", 0), (r"20^\circ\text{C}", r"20^\circ\text{F}", 0),
        (r"\frac{\pi}{2}\text{ radians}", r"\frac{\pi}{2}", 1), ("7 days", "7 weeks", 0), (r"20\text{ sq units}", "20", 1),
    ],
    "currency": [
        (r"\$18.90", "18.9", 1), ("18", r"\$18", 1), (r"\$1,\!657", "1657 dollars", 1), (r"\$5", "5 cents", 0), (r"\$5", "€5", 0),
        (r"-\$5", "-5", 1), (r"\$5.50", "$5.50", 1),
    ],
    "sets and tuples": [
        (r"\{4,9,12\}", r"\{12,4,9\}", 1), ("(3,7)", "(7,3)", 0), (r"\{4,9,12\}", r"\{4,9\}", 0), ("1,2", "2 and 1", 1),
        (r"\{1,2\}", "(1,2)", 0), (r"\{1,2\}", r"\{1,2,2\}", 0), ("5,-2", "-5,2", 0), ("(1,2),(3,4)", "(3,4),(1,2)", 1),
        ("5", r"\{5\}", 1), (r"\pm 8", "8, -8", 1), (r"\pm 8", "8", 0), ("8", r"\pm 8", 0), (r"1 \pm \sqrt{3}", r"1-\sqrt3, 1+\sqrt3", 1),
        (r"\{1\pm\sqrt{5},-2\}", r"\{-2, 1-\sqrt5, 1+\sqrt5\}", 1), (r"(0.5,\sqrt{2})", r"\left(\frac12, \sqrt2\right)", 1),
        (r"\emptyset", r"\{\}", 1), ("0", r"\emptyset", 0), ("(x,y)", "(y,x)", 0), ("1,2,3", "1,2", 0),
    ],
    "intervals": [
        (r"x\ge 6", r"[6,\infty)", 1), (r"x\ge 6", "x>6", 0), ("x>7", "7<x", 1), ("(3,8)", "3<x<8", 0), ("3<x<8", "(3,8)", 1),
        ("(3,8)", "[3,8]", 0), ("[3,8)", r"3 \le x < 8", 1), (r"x\in[-2,7]", "[-2,7]", 1), (r"(-\infty,2)\cup(3,\infty)", r"x<2\text{ or }x>3", 1),
        (r"(0,5)\cup(5,\infty)", r"(5,\infty)\cup(0,5)", 1), (r"(0,3)\cup[3,5)", "(0,5)", 1), (r"\mathbb{R}", r"(-\infty,\infty)", 1),
        (r"(-\infty,0)\cup(0,\infty)", r"x\neq 0", 1), ("[3,15]", "[15,3]", 0), (r"(-\infty,4)", r"(4,\infty)", 0), (r"x\ge 6", r"y\ge 6", 0),
        (r"\mathbb{R}\setminus\{3\}", r"(-\infty,3)\cup(3,\infty)", 1), ("5", r"x\ge 5", 0), ("[0,2)", "[0,2]", 0),
    ],
    "inequalities": [
        (r"s^2 \le 8r^2", r"8r^2 \ge s^2", 1), (r"s^2 \le 8r^2", r"s^2 \ge 8r^2", 0), ("x>3", "2x>6", 1), ("x>3", "-x>-3", 0), ("x>3", "-x<-3", 1),
    ],
    "matrices": [
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}", 1), (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1&2\end{pmatrix}", 0),
        (r"\begin{pmatrix}4\\0\end{pmatrix}", r"\begin{pmatrix}8\\0\end{pmatrix}", 0), (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "[[1,2],[3,4]]", 1),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", 0),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\left[\begin{array}{cc}1 & 2 \\ 3 & 4\end{array}\right]", 1),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\frac{1}{2}\begin{pmatrix}2\\4\end{pmatrix}", 1), (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)", 0),
    ],
    "bases": [
        ("2201_3", "2201_4", 0), ("2201_3", "2201", 1), ("2201_3", "73", 0), ("2201_3", "2201_{3}", 1), ("2201_3", r"2201_{\text{three}}", 1),
        ("2201_3", "(2201)_3", 1), ("11", "1011_2", 0), ("11", "11_{10}", 1), ("1011_2", "11_{10}", 0), ("2A_{16}", "0x2A", 1), ("1011_2", "1021_2", 0),
    ],
    "equations": [
        ("8", "x=8", 1), ("x=8", "8", 1), ("x=8", "y=8", 0), ("8", "3x=8", 0), ("8", "3+5=8", 1), ("8", "3+4=8", 0), ("8", "x = 3 + 5 = 8", 1),
        ("3x-2y+6=0", r"y=\frac{3}{2}x+3", 1), ("3x-2y+6=0", "3x+2y+6=0", 0), ("3*x-2*y+6=0", "7x+5y+4=0", 0), ("y=2x+3", "2x+3", 1),
        ("x=1,y=2", "y=2, x=1", 1), ("x=1,y=2", "(1,2)", 1), ("x=1,y=2", "2,1", 0), ("(1,2)", "x=2,y=1", 0), ("(1,2)", "(x,y)=(1,2)", 1),
        ("f(n)=n^2", "f(x)=x^2", 1), ("f(x)=2x", "f(x)=2", 0), ("x=5,6", "6,5", 1), ("5,6", r"x=5\text{ or }x=6", 1), ("x=5", "x>5", 0),
        (r"3\pi", r"3\pi \approx 9.42", 1), (r"\pi", r"\pi \approx 3", 1), (r"\pi", "3.14159265358979", 0),
    ],
    "complex numbers": [
        ("3-8i", "-8i+3", 1), ("-1", "i^2", 1), ("3-8i", "3+8i", 0), ("5", "5i", 0), (r"e^{i\pi}", "-1", 1), ("i", "-i", 0),
    ],
    "formulas": [
        (r"\tan^2(u)+1", r"\sec^2(u)", 1), (r"\ln 7", r"\log_e 7", 1), (r"\frac{x+5}{8}", r"\frac{x}{8}+\frac{5}{8}", 1), ("x^2-1", "(x-1)(x+1)", 1),
        (r"\sqrt{x^2}", "x", 0), (r"\sqrt{x^2}", "|x|", 1), (r"\sqrt{1/m}", r"\frac{1}{\sqrt{m}}", 1), (r"\sqrt[3]{-8}", "-2", 1), ("2k", "k^2", 0),
        (r"\log 5", r"\ln 5", 0), (r"\frac{\log 2}{\log 3}", r"\frac{\ln 2}{\ln 3}", 1), (r"\sin 2x", r"2\sin x\cos x", 1), ("x", "X", 0), ("5xy", "5yx", 1),
        ("10^{-20}x", r"2\cdot 10^{-20}x", 0), ("e^{-50}", "e^{-49}", 0), (r"\binom{6}{2}", "15", 1), ("p-q", "q-p", 0), ("p-q", "-q+p", 1),
        (r"(n-2) 2^{n}+1", r"1+2^n(n-2)", 1), (r"\int_0^1 x^2 dx", r"\frac{1}{3}", 1), (r"\sum_{k=1}^{n} k", r"\frac{n(n+1)}{2}", 1),
    ],
    "plain notation": [
        ("21", r"\text{21}", 1), ("5*m/7", r"\frac{5m}{7}", 1), ("no", r"\text{no}", 1), (r"\text{Ines}", r"\text{Marta}", 0), (r"$\dfrac{7}{4}$", r"\dfrac{7}{4}", 1),
        ("sqrt(2)/2", r"\frac{1}{\sqrt{2}}", 1), ("x**2", "x^2", 1), (r"\text{(C)}", "C", 1), ("A", "B", 0), (r"\text{ellipse}", "an ellipse", 1),
        (r"\text{Evelyn}", "evelyn", 1), (r"\text{yes}", "yse", 0), ("true", "false", 0),
    ],
    "ratios and times": [
        ("5:6", "5 : 6", 1), ("5:6", "6:5", 0), ("9:24", "3:8", 0), ("9:24", "9:24 a.m.", 1), ("9:24 a.m.", "9:24 p.m.", 0), ("13", r"05\!:\!00", 0),
    ],
}  # fmt: skip
"""(reference, what is in the box, reward)."""

TEXTS = [
    ("11", r"First \boxed{6}. No: \boxed{11}.", 1), ("6", r"First \boxed{6}. No: \boxed{11}.", 0), ("6, 11", r"\boxed{6} or \boxed{11}", 0),
    ("29", r"\fbox{29}", 1), ("8", r"\boxed{\boxed{8}}", 1), (r"\frac{1}{\sqrt{2}}", r"So \boxed{\frac{1}{\sqrt{2}}}.", 1), ("8", r"\boxed 8", 1),
    ("8", r"<think>\boxed{8}</think> It is \boxed{3}", 0), ("3", r"<think>\boxed{8}</think> It is \boxed{3}", 1), ("8", r"<think>so \boxed{8}", 0),
    ("8", r"<think>so \boxed{8}</think> I do not know.", 0), ("8", "", 0), ("8", r"\boxed{}", 0), ("8", r"8 \boxed{", 0),
    ("72", "48 + 24 = 72\n#### 72", 1), ("24", "48 + 24 = 72\n#### 72", 0), ("12", "The answer is 5. No, the answer is **12**.", 1),
    ("5", "The answer is 5 because 2 + 3 = 5.", 1), ("3*x-2*y+6=0", "3x - 2y + 6 = 0", 1), ("3*x-2*y+6=0", "7x + 5y + 4=0", 0),
    ("4", "that is 3 + 4", 0), (r"2\sqrt{3}", r"Hence the side is $2\sqrt{3}$.", 1), ("5", "anything from 3 to 5", 0),
]  # fmt: skip
"""(reference, whole output, reward)."""
