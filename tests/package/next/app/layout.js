export const metadata = { title: "An application of somebody else's", icons: { icon: "data:," } };

export default function Layout({ children }) {
  return (
    <html lang="en">
      <body>{children}</body>
    </html>
  );
}
