/** The panel's icon: a chip with its pins. */
export default `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3" fill="#616161">
    <path d="M7 5h10a2 2 0 0 1 2 2v10a2 2 0 0 1-2 2H7a2 2 0 0 1-2-2V7a2 2 0 0 1 2-2zm0 2v10h10V7H7z"/>
    <path d="M9.5 9.5h5v5h-5z"/>
    <path d="M8 1.5h2v3H8zM14 1.5h2v3h-2zM8 19.5h2v3H8zM14 19.5h2v3h-2zM1.5 8h3v2h-3zM1.5 14h3v2h-3zM19.5 8h3v2h-3zM19.5 14h3v2h-3z"/>
  </g>
</svg>`;
